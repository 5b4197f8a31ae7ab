import pytest
from structlog.testing import capture_logs

from headrace import SKIP, Reject, To, bolt
from headrace.sinks import MemorySink
from headrace.testing import RetryPolicy, topology_test
from service.errors import TooManyDeadLetters
from service.pipeline.failures import DeadLetterLimit, ScreenPolicy
from service.pipeline.trees import OutcomeCounters
from tests.support.pipeline import KINDS, Seen, drawn, payload, piped

value_of = bolt(lambda record: repr(record.value))


@pytest.mark.parametrize(
    ("policy", "rows", "letters"),
    [
        ("deliver", ["b'x'", "None", "b''"], 0),
        ("skip", ["b'x'", "b''"], 0),
        ("dead-letter", ["b'x'", "b''"], 1),
    ],
)
def test_tombstone_follows_null_values(policy, rows, letters):
    """Storm 22: a record without a value completes under every policy."""
    with topology_test(piped(first=value_of), screen=ScreenPolicy(policy)) as test:
        test.send(b"x", None, b"", key=None)
        assert test.rows == rows
        assert len(test.rejected) == letters
        assert next(test._reader.statistics(0.0)).ledger.last_completed_offset == 3


def test_oversized_record_is_rejected_by_reference():
    screen = ScreenPolicy(max_record_bytes=10)
    with topology_test(piped(first=value_of), screen=screen) as test:
        test.send(b"x" * 10, b"y" * 11)
        assert len(test.rows) == 1
        (letter,) = test.rejected
    assert letter.by_reference
    assert (letter.error_class, letter.step) == ("Oversized", "screen")


@pytest.mark.parametrize("limit", [0, 2])
def test_each_failed_record_of_a_chunk_is_retried_or_rejected(limit):
    """Promise 13; Storm 22. They get their letters together, in trees of their own."""
    late = set()

    @bolt
    def judged(record):
        value = record.value.decode()
        if value == "rejected":
            raise Reject(f"rejected {record.offset}")
        if value == "broken":
            return None
        if value == "failing" or (value == "late" and record.offset not in late):
            late.add(record.offset)
            raise ValueError(f"failing {record.offset}")
        return SKIP if value == "skipped" else {"offset": record.offset}

    kinds = ["good", "rejected", "failing", "broken", "late", "skipped", "rejected", "good"]
    retries = RetryPolicy(limit=limit, jitter=0)
    with capture_logs() as logs, topology_test(piped(first=judged), retries=retries) as test:
        test.send(*(kind.encode() for kind in kinds))
        test.advance(120)
        letters = {each.record.offset: each for each in test.rejected}
        assert len(letters) == len(test.rejected)
        told = {offset: (each.error_class, each.attempts) for offset, each in letters.items()}
        lost = {2: ("ValueError", limit + 1)} | ({} if limit else {4: ("ValueError", 1)})
        assert told == {1: ("Reject", 1), 3: ("NothingReturned", 1), 6: ("Reject", 1)} | lost
        assert {letters[place].reason for place in (1, 6)} == {"rejected 1", "rejected 6"}
        assert sorted(row["offset"] for row in test.rows) == [0, *([4] if limit else []), 7]
        assert test.unresolved == 0
        counters = test._pipeline.counters
        assert (counters.written, counters.filtered) == (len(test.rows), 1)
        assert counters.dead_lettered == len(letters)
    lines = [line for line in logs if line["event"] == "step_failing"]
    assert {(line["step"], line["log_level"]) for line in lines} == {("judged", "warning")}
    assert sum(line["count"] for line in lines) == 3 + limit + 2


def test_failing_step_decides_on_the_retries():
    """Promise 13: a policy of the step goes before the pipeline's."""

    @bolt
    def never(value):
        raise ValueError("never")

    @bolt
    async def nor_this(value):
        raise ValueError("never")

    def draw(stream):
        own = stream.then(bolt(lambda v: To("async", v) if v["n"] else v), name="sort",
                          streams=("async",))  # fmt: skip
        own.then(never, retries=RetryPolicy(limit=0)).into(MemorySink("a"))
        own["async"].then(nor_this, retries=RetryPolicy(limit=3, jitter=0)).into(MemorySink("b"))
        stream.then(bolt(lambda value: value), name="rest").into(MemorySink("c"))

    with topology_test(drawn(draw), retries=RetryPolicy(limit=1, jitter=0)) as kit:
        kit.send(payload(n=0), payload(n=1)).advance(600)
        found = {letter.record.offset: (letter.step, letter.attempts) for letter in kit.rejected}
        assert found == {0: ("never", 1), 1: ("nor_this", 4)}


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_once_never_retries(kind):
    seen = Seen(failing=[(0, 1)])

    def draw(stream):
        stream.then(seen.make(kind), retries=RetryPolicy(limit=5)).into(MemorySink("out"))

    with topology_test(drawn(draw, reliability="at-most-once")) as kit:
        kit.send(*[payload(n=n) for n in range(3)]).advance(60)
        assert sorted(seen.calls[0]) == [0, 1, 2]
        assert sorted(row["n"] for row in kit.rows) == [0, 2]
        assert [letter.attempts for letter in kit.rejected] == [1]
        assert kit.unresolved == 0


def feed(limit, counters, letters, good):
    """Let records resolve one by one, the bad ones first."""
    for _ in range(letters):
        counters.dead_lettered += 1
        limit.look(counters)
    for number in range(good):
        counters.written += number % 2
        counters.filtered += 1 - number % 2
        limit.look(counters)


@pytest.mark.parametrize(
    ("max_ratio", "of_records", "before", "letters"),
    [
        (0.2, 100, [(20, 80), (20, 80)], 100),
        (0.5, 100, [(0, 10_000)], 70),  # earlier good records hide no bad ones
        (0.0, 10, [(0, 10)], 1),
    ],
)
def test_ratio_above_the_limit_ends_the_run(max_ratio, of_records, before, letters):
    counters, limit = OutcomeCounters(), DeadLetterLimit(max_ratio, of_records)
    for bad, good in before:
        feed(limit, counters, bad, good)
    earlier = counters.dead_lettered
    with pytest.raises(TooManyDeadLetters, match=r"of the last \d+ resolved records") as raised:
        feed(limit, counters, letters, 0)
    assert raised.value.letters > max_ratio * raised.value.records
    assert of_records <= raised.value.records < of_records * 1.2
    assert counters.dead_lettered - earlier <= max(1, max_ratio * of_records * 1.2 + 10), "soon"


def test_few_or_old_bad_records_do_not_count():
    feed(DeadLetterLimit(), OutcomeCounters(), 5_000, 0)
    feed(DeadLetterLimit(0.1, of_records=100), OutcomeCounters(), 99, 0)
    counters, limit = OutcomeCounters(), DeadLetterLimit(0.5, of_records=100)
    feed(limit, counters, 45, 100)
    feed(limit, counters, 45, 100)
    counters.dead_lettered += 40
    counters.written += 4_000  # at once, more than is looked back at
    limit.look(counters)
