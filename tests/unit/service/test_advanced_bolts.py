"""Advanced bolts in a whole pipeline: what becomes of records that several tuples belong to."""

import pytest

from headrace import AdvancedBolt, Reject, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test


class Pairs(AdvancedBolt):
    """Joins each two tuples, in the order of their arrival."""

    def open(self):
        self.kept = []

    def process(self, tuple_, collector, /):
        self.kept = [*collector.pending(self.kept), tuple_]
        if len(self.kept) == 2:
            collector.emit(b"+".join(each.value for each in self.kept), anchors=self.kept)
            for each in self.kept:
                collector.ack(each)
            self.kept = []


class Keep(AdvancedBolt):
    """Keeps everything, and answers when it is drained."""

    def open(self):
        self.kept = []

    def process(self, tuple_, collector, /):
        self.kept.append(tuple_)

    def drain(self, collector, /):
        for each in collector.pending(self.kept):
            collector.emit(each.value, anchors=each)
            collector.ack(each)
        self.kept = []


class Each(AdvancedBolt):
    """Does with each tuple what a function says."""

    def __init__(self, does):
        self.does = does

    def process(self, tuple_, collector, /):
        self.does(tuple_, collector)


@bolt
def value_of(record):
    return record.value


def piped(*bolts):
    """A topology of one source, these bolts, and a sink."""
    topology = Topology("t")
    stream = topology.source("t").then(value_of)
    for each in bolts:
        stream = stream.then(each)
    stream.into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def offsets(records):
    return sorted(record.offset for record in records)


def failing(*times):
    """A function bolt that raises at its first calls, and async ones that do."""
    left = list(times)

    def check(value):
        if left:
            raise left.pop(0)
        return value

    return check


def test_joined_records_complete_with_their_row():
    """Promise 3."""
    with topology_test(piped(Pairs)) as kit:
        kit.send(b"a")
        assert kit.acked == []
        assert kit.unresolved == 1
        kit.send(b"b", b"c")
        assert kit.rows == [b"a+b"]
        assert offsets(kit.acked) == [0, 1]
        assert kit.metrics["headrace_acker_ignored_messages_total"] == 0


@pytest.mark.parametrize("kind", ["function", "async"])
def test_failed_join_retries_both_records(kind):
    """Promise 4."""
    check = failing(ValueError("first"))

    async def wait(value):
        return check(value)

    with topology_test(piped(Pairs, bolt(check if kind == "function" else wait))) as kit:
        kit.send(b"a", b"b")
        assert (kit.rows, kit.acked, kit.retrying) == ([], [], 2)
        kit.advance(60)
        assert kit.rows == [b"a+b"]
        assert offsets(kit.acked) == [0, 1]


@pytest.mark.parametrize("kind", ["function", "async"])
def test_rejected_join_sends_a_dead_letter_of_each_record(kind):
    check = failing(Reject("no pair"))

    async def wait(value):
        return check(value)

    with topology_test(piped(Pairs, bolt(check if kind == "function" else wait))) as kit:
        kit.send(b"a", b"b", b"c", b"d")
        assert [(letter.record.offset, letter.reason) for letter in kit.rejected] == [
            (0, "no pair"),
            (1, "no pair"),
        ]
        assert kit.rows == [b"c+d"]
        assert offsets(kit.acked) == [2, 3]


def test_a_call_that_raises_sends_nothing_and_its_record_comes_again():
    errors = [ValueError("later")]

    def emit_and_raise(tuple_, collector):
        collector.emit(tuple_.value, anchors=tuple_)
        collector.ack(tuple_)
        if tuple_.value == b"bad" and errors:
            raise errors.pop()

    with topology_test(piped(Each(emit_and_raise))) as kit:
        kit.send(b"a", b"bad", b"c")
        assert kit.rows == [b"a", b"c"]
        assert kit.retrying == 1
        kit.advance(60)
        assert kit.rows == [b"a", b"c", b"bad"]
        assert offsets(kit.acked) == [0, 1, 2]


def test_double_ack_sends_a_dead_letter():
    def ack_twice(tuple_, collector):
        collector.ack(tuple_)
        collector.ack(tuple_)

    with topology_test(piped(Each(ack_twice))) as kit:
        kit.send(b"a")
        (letter,) = kit.rejected
        assert letter.error_class == "BoltError"
        assert "Emit first, then ack or fail each tuple once" in letter.reason


def test_acked_tuple_without_output_is_filtered():
    with topology_test(piped(Each(lambda tuple_, collector: collector.ack(tuple_)))) as kit:
        kit.send(b"a")
        assert offsets(kit.acked) == [0]
        assert kit.rows == []


def test_failed_tuple_is_retried_or_rejected_by_its_error():
    def fail(tuple_, collector):
        collector.fail(tuple_, Reject("bad") if tuple_.value == b"bad" else None)

    with topology_test(piped(Each(fail))) as kit:
        kit.send(b"bad", b"later")
        assert [letter.reason for letter in kit.rejected] == ["bad"]
        assert kit.retrying == 1


def test_unanchored_value_reaches_the_sink():
    def emit(tuple_, collector):
        collector.emit(b"?" + tuple_.value, anchors=())
        collector.ack(tuple_)

    with topology_test(piped(Each(emit))) as kit:
        kit.send(b"a")
        assert kit.rows == [b"?a"]
        assert offsets(kit.acked) == [0]
        assert kit.metrics["headrace_acker_unanchored_tuples_total"] == 1


def test_held_tuples_are_drained_at_the_end():
    with topology_test(piped(Keep)) as kit:
        kit.send(b"a", b"b")
        assert kit.acked == []
        kit.drain()
        assert kit.rows == [b"a", b"b"]
        assert offsets(kit.acked) == [0, 1]


def test_reset_timeout_keeps_a_tuple_alive():
    class Patient(Keep):
        tick_seconds = 10.0

        def tick(self, collector, /):
            for each in self.kept:
                collector.reset_timeout(each)

    with topology_test(piped(Pairs, Patient)) as kit:
        kit.send(b"a", b"b")
        kit.advance(200)
        assert kit.unresolved == 2
        assert kit.retrying == 0
        kit.drain()
        assert kit.rows == [b"a+b"]
        assert offsets(kit.acked) == [0, 1]


def test_a_tuple_that_is_never_acked_expires_and_its_record_comes_again():
    seen = []

    def forget_once(tuple_, collector):
        seen.append(tuple_.value)
        if len(seen) > 1:
            collector.ack(tuple_)

    with topology_test(piped(Each(forget_once))) as kit:
        kit.send(b"a")
        kit.advance(20)
        assert seen == [b"a"]
        for _ in range(10):
            kit.advance(10)
        assert seen == [b"a", b"a"]
        assert offsets(kit.acked) == [0]


@pytest.mark.parametrize("error", [ValueError("later"), Reject("no")])
def test_a_value_without_an_anchor_that_fails_is_lost_and_troubles_nobody(error):
    def emit(tuple_, collector):
        collector.emit(b"?", anchors=())
        collector.emit(tuple_.value, anchors=tuple_)
        collector.ack(tuple_)

    with topology_test(piped(Each(emit), bolt(failing(error)))) as kit:
        kit.send(b"a")
        assert kit.rows == [b"a"]
        assert offsets(kit.acked) == [0]
        assert kit.rejected == []
