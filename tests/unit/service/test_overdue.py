"""A record whose time has passed: who kept it, and how the failures of a bolt are told."""

from typing import ClassVar

import structlog

from headrace import AdvancedBolt, Record, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test

NEVER = RetryPolicy(limit=0)


class Forgets(AdvancedBolt):
    """Acks nothing."""

    def process(self, tuple_, collector, /):
        """Do nothing."""


class Pairs(AdvancedBolt):
    """Emits a value for each two tuples."""

    def open(self):
        self.first = None

    def process(self, tuple_, collector, /):
        if self.first is None:
            self.first = tuple_
            return
        both = [self.first, tuple_]
        collector.emit("pair", anchors=both)
        for each in both:
            collector.ack(each)
        self.first = None


@bolt
def row_of(record: Record) -> dict[str, bytes]:
    return {"value": record.value or b""}


def letters_after(*bolts, payloads=(b"1",), general=NEVER, **options):
    """The dead letters of a topology of bolts, the last of them with options."""
    topology = Topology("kept")
    stream = topology.source("in")
    for each in bolts[:-1]:
        stream = stream.then(each)
    stream.then(bolts[-1], **options).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology, retries=general, message_timeout_seconds=30) as kit:
        kit.send(*payloads).advance(300)
        return kit.rejected


def test_a_tuple_that_is_never_acked_fails_at_the_bolt_that_keeps_it():
    (letter,) = letters_after(row_of, Forgets)
    assert letter.step == "Forgets"
    assert letter.reason == (
        "bolt 'Forgets' neither acked nor failed a tuple in time: message_timeout_seconds=30"
    )


def test_bolt_timeout_may_be_shorter_than_the_message_timeout():
    class Notes(AdvancedBolt):
        calls: ClassVar[list[float]] = []

        def process(self, tuple_, collector, /):
            self.calls.append(collector.now)

    retries = RetryPolicy(limit=1, initial_seconds=1, jitter=0)
    (letter,) = letters_after(row_of, Notes, timeout_seconds=5, general=retries)
    assert letter.reason == (
        "bolt 'Notes' neither acked nor failed a tuple in time: timeout_seconds=5"
    )
    first, second = Notes.calls
    assert 6 <= second - first < 8  # the time-out, and the retry's second


def test_expired_join_fails_all_its_records():
    letters = letters_after(Pairs, Forgets, payloads=(b"1", b"2"), timeout_seconds=5)
    assert [letter.record.offset for letter in letters] == [0, 1]
    assert {letter.step for letter in letters} == {"Forgets"}


def test_ack_after_the_timeout_is_ignored():
    class Late(AdvancedBolt):
        tick_seconds = 8.0

        def open(self):
            self.kept = []

        def process(self, tuple_, collector, /):
            self.kept.append(tuple_)

        def tick(self, collector, /):
            for each in self.kept:
                collector.emit(each.value, anchors=each)
                collector.ack(each)
            self.kept = []

    (letter,) = letters_after(row_of, Late, timeout_seconds=5)
    assert isinstance(letter.reason, str)
    assert letter.step == "Late"


def test_expired_join_names_the_bolts_that_hold_it():
    letters = letters_after(Pairs, Forgets, payloads=(b"1", b"2"))
    assert [letter.record.offset for letter in letters] == [0, 1]
    for letter in letters:
        assert letter.step == "topology"
        assert letter.reason == (
            "the record's tree was not resolved in time: message_timeout_seconds=30; "
            "perhaps one of these bolts keeps a tuple of it: Forgets"
        )


def test_failures_are_logged_by_step_and_class():
    @bolt
    def picky(record: Record) -> dict[str, int]:
        value = (record.value or b"").decode()
        if value.startswith("bad"):
            raise ValueError(f"{value} is bad")
        return {"n": int(value)}

    topology = Topology("told")
    topology.source("in").then(picky).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with (
        structlog.testing.capture_logs() as logs,
        topology_test(topology, retries=RetryPolicy(limit=0)) as kit,
    ):
        kit.send(b"bad 0", b"1", b"x", *(b"bad %d" % n for n in range(1, 100)))
        kit.advance(15)
        kit._pipeline.statistics()  # read every quarter of a second by a service
        kit.send(b"bad 100")
        assert len(kit.rejected) == 102
    told = [line for line in logs if line["event"] == "step_failing"]
    assert all(line["log_level"] == "warning" and line["step"] == "picky" for line in told)
    assert [line["error"] for line in told[:2]] == [
        "bad 0 is bad",
        "invalid literal for int() with base 10: 'x'",
    ]
    assert sum(line["count"] for line in told) == 102
    assert len(told) <= 4
