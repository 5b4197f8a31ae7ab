import threading
from functools import partial

import pytest
from structlog.testing import capture_logs

from headrace import AdvancedBolt, Reject
from headrace.sinks import MemorySink
from headrace.testing import RetryPolicy, topology_test
from partition.records import Partition
from tests.support.pipeline import Keep, Pairs, Works, drawn, failing_once, piped, text_of
from topology.errors import BoltError

THERE = Partition("t", 1)


class Each(AdvancedBolt):
    def __init__(self, does):
        self.does = does

    def process(self, tuple_, collector, /):
        self.does(tuple_, collector)


def offsets(records):
    return sorted(record.offset for record in records)


@pytest.mark.parametrize("kind", ["function", "async"])
def test_failed_join_retries_both_records(kind):
    """Promise 4."""
    with topology_test(piped(Pairs, failing_once(ValueError("first"), kind))) as kit:
        kit.send(b"a", b"b")
        assert (kit.rows, kit.acked, kit.retrying) == ([], [], 2)
        kit.advance(60)
        assert kit.rows == ["a+b"]
        assert offsets(kit.acked) == [0, 1]


@pytest.mark.parametrize("kind", ["function", "async"])
def test_rejected_join_sends_a_dead_letter_of_each_record(kind):
    """Promise 3: a record completes with the row, or the letter, of all that were joined."""
    with topology_test(piped(Pairs, failing_once(Reject("no pair"), kind))) as kit:
        kit.send(b"a")
        assert (kit.acked, kit.unresolved) == ([], 1)
        kit.send(b"b", b"c", b"d")
        letters = [(letter.record.offset, letter.reason) for letter in kit.rejected]
        assert letters == [(0, "no pair"), (1, "no pair")]
        assert (kit.rows, offsets(kit.acked)) == (["c+d"], [2, 3])


def test_tuple_is_acked_failed_or_comes_again_after_an_error():
    errors = [ValueError("later")]

    def act(tuple_, collector):
        if tuple_.value.startswith("fail"):
            collector.fail(tuple_, Reject("bad") if tuple_.value == "fail for good" else None)
            return
        if tuple_.value != "filter":
            collector.emit(tuple_.value, anchors=tuple_)
        collector.ack(tuple_)
        if tuple_.value == "raise" and errors:
            raise errors.pop()

    with topology_test(piped(Each(act))) as kit:
        kit.send(b"emit", b"filter", b"raise", b"fail for good", b"fail")
        assert (kit.rows, offsets(kit.acked), kit.retrying) == (["emit"], [0, 1], 2)
        assert [letter.reason for letter in kit.rejected] == ["bad"]
        kit.advance(60)
        assert (kit.rows, offsets(kit.acked)) == (["emit", "raise"], [0, 1, 2])


def test_call_that_raises_undoes_what_it_asked_for():
    held = []

    def act(tuple_, collector):
        if tuple_.value == "bad":
            collector.emit("x", anchors=[*held, tuple_])
            collector.reset_timeout(held[0])
            collector.ack(held[0])
            collector.fail(held[1])
            collector.ack(tuple_)
            raise Reject("bad")
        held.append(tuple_)

    with topology_test(piped(Each(act))) as kit:
        kit.send(b"a", b"b", b"bad")
        assert (kit.rows, kit.acked, kit.unresolved, kit.retrying) == ([], [], 2, 0)
        assert [letter.record.offset for letter in kit.rejected] == [2]
        assert [each.is_settled for each in held] == [False, False]


def test_collector_is_valid_during_a_call_on_its_thread_only():
    """Storm 51: other threads get an error, instead of losing acks."""
    kept, refused = [], []

    def call_all(tuple_, collector):
        emit, look = partial(collector.emit, anchors=()), lambda each: collector.pending([each])
        for call in (collector.ack, collector.fail, collector.reset_timeout, emit, look):
            with pytest.raises(BoltError, match="outside its own call or on another thread"):
                call(tuple_)
            refused.append(call)

    def act(tuple_, collector):
        kept.append((tuple_, collector))
        thread = threading.Thread(target=call_all, args=kept[0])
        thread.start()
        thread.join()

    with topology_test(piped(Each(act))) as kit:
        kit.send(b"a")
        call_all(*kept[0])
        assert (len(refused), kit.acked, kit.unresolved) == (10, [], 1)


@pytest.mark.parametrize("error", [None, ValueError("later"), Reject("no")])
def test_value_without_an_anchor_is_written_or_lost(error):
    def emit(tuple_, collector):
        collector.emit("?" + tuple_.value, anchors=())
        collector.emit(tuple_.value, anchors=tuple_)
        collector.ack(tuple_)

    behind = [] if error is None else [failing_once(error)]
    with topology_test(piped(Each(emit), *behind)) as kit:
        kit.send(b"a")
        assert kit.rows == ["?a", "a"] if error is None else ["a"]
        assert offsets(kit.acked) == [0]
        assert kit.rejected == []
        assert kit.metrics["headrace_acker_unanchored_tuples_total"] == 1


@pytest.mark.parametrize("options", [{}, {"timeout_seconds": 15}], ids=["topology's", "own"])
def test_reset_timeout_keeps_a_tuple_alive_until_it_is_drained(options):
    class Patient(Keep):
        tick_seconds = 10.0

        def tick(self, collector, /):
            for each in self.kept:
                collector.reset_timeout(each)

    with topology_test(piped(Pairs, Patient, **options)) as kit:
        kit.send(b"a", b"b")
        kit.advance(200)
        assert (kit.unresolved, kit.retrying) == (2, 0)
        kit.drain()
        assert (kit.rows, offsets(kit.acked)) == (["a+b"], [0, 1])
        assert kit.metrics["headrace_acker_ignored_messages_total"] == 0


class Forgets(AdvancedBolt):
    tick_seconds = 8.0

    def __init__(self, late_seconds):
        self.late_seconds = late_seconds
        self.calls = []

    def process(self, tuple_, collector, /):
        self.calls.append((collector.now, tuple_))

    def tick(self, collector, /):
        for since, tuple_ in self.calls:
            if 0 < collector.now - since - self.late_seconds <= self.tick_seconds:
                collector.emit(tuple_.value, anchors=tuple_)
                collector.ack(tuple_)


@pytest.mark.parametrize(
    ("join", "own_seconds", "step", "reason"),
    [
        (False, None, "Forgets", "neither acked nor failed a tuple in time: message_timeout"),
        (False, 5, "Forgets", "neither acked nor failed a tuple in time: timeout_seconds=5"),
        (True, 5, "Forgets", "neither acked nor failed a tuple in time: timeout_seconds=5"),
        (True, None, "topology", "perhaps one of these bolts keeps a tuple of it: Forgets"),
    ],
)
def test_expired_tuple_names_the_bolt_that_keeps_it(join, own_seconds, step, reason):
    forgets = Forgets(own_seconds + 1 if own_seconds else 100)
    bolts = [Pairs, forgets] if join else [forgets]
    options = {"timeout_seconds": own_seconds} if own_seconds else {}
    retries = RetryPolicy(limit=1, initial_seconds=1, jitter=0)
    with topology_test(piped(*bolts, **options), retries=retries) as kit:
        kit.send(*([b"1", b"2"] if join else [b"1"])).advance(300)
        assert [letter.record.offset for letter in kit.rejected] == ([0, 1] if join else [0])
        for letter in kit.rejected:
            assert (letter.step, letter.attempts) == (step, 2)
            assert reason in letter.reason
        assert kit.rows == []
    if own_seconds:
        (first, _), (second, _) = forgets.calls
        assert 6 <= second - first < 8  # the time-out, and the retry's second


def test_tick_emits_anchored_values():
    errors = [ValueError("first")]

    class Sums(Keep):
        tick_seconds = 5.0

        def tick(self, collector, /):
            kept = collector.pending(self.kept)
            if kept:
                collector.emit("".join(each.value for each in kept), anchors=kept)
                for each in kept:
                    collector.ack(each)
            if errors:
                raise errors.pop()
            self.kept.clear()

    with capture_logs() as logs, topology_test(piped(Sums)) as kit:
        kit.send(b"1", b"2").advance(5)
        assert (kit.rows, kit.acked) == ([], []), "nothing of a tick that raises has happened"
        kit.advance(5)
        assert kit.rows == ["12"]
        assert len(kit.acked) == 2
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["tick_failed"]


def test_retried_record_in_a_pair_does_not_wait_for_itself():
    """It holds the key for which the pair wants to be called."""

    def draw(stream):
        paired = stream.then(Pairs).keyed_by(lambda value: value[0])
        once = failing_once(ValueError("once"), "async")
        paired.then(once, workers=4).into(MemorySink("out"))

    with topology_test(drawn(draw, first=text_of), message_timeout_seconds=600) as kit:
        kit.send(b"1").advance(10)
        assert kit.retrying == 1
        kit.advance(1).send(b"2")
        assert kit.rows == ["1+2"]
        assert (len(kit.acked), kit.unresolved) == (2, 0)


@pytest.mark.parametrize("bolts", [(Keep,), (Pairs, Keep)], ids=["tuples", "joint tuples"])
def test_tuples_of_a_leaving_partition_are_drained(bolts):
    with Works(text_of, *bolts, partitions=2, shared=True) as works:
        works.want(0, 1)
        works.send(b"a", b"b")
        works.until(lambda: works.ledger.pending == 2)
        works.turn(5)
        assert works.sink.rows == []
        works.want(1)
        works.until(lambda: works.reader.assignment.holds == {THERE})
        assert works.sink.rows == (["a", "b"] if len(bolts) == 1 else ["a+b"])
        assert works.stored == 2
        assert works.reader.assignment.departed.given_up == 0


def test_tuples_of_partitions_that_stay_are_not_drained():
    keep = Keep()
    with Works(text_of, keep, partitions=2, shared=True) as works:
        works.want(0, 1)
        works.send(b"a", partition=1)
        works.until(lambda: works.pipeline.acker.in_flight == 1)
        works.want(1)
        works.until(lambda: works.reader.assignment.holds == {THERE})
        works.turn(5)
        assert (keep.drained, works.sink.rows) == (0, [])
