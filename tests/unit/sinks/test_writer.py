import queue
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from sinks.batcher import PendingBatch
from sinks.errors import WriterBusy, WriterStopped
from sinks.tries import WriteRetries
from sinks.writer import Writer, WriteResult
from tests.support.patience import seconds
from topology.errors import RowsRejected, SinkBusy, SinkFailed
from topology.sink import Batch, Sink, SinkContext

FAST = WriteRetries(first_seconds=0.001, longest_seconds=0.002)
NEVER = WriteRetries(first_seconds=3600.0, longest_seconds=3600.0, jitter=0.0)


class Script(Sink[Any]):
    """Does at each write what the next line of its script says; None is success."""

    name = "script"

    def __init__(self, *lines: BaseException | Callable[[], None] | None) -> None:
        self.lines = list(lines)
        self.tried: queue.SimpleQueue[int] = queue.SimpleQueue()

    def open(self, context: SinkContext) -> None: ...

    def write(self, batch: Batch) -> None:
        self.tried.put(batch.sequence)
        line = self.lines.pop(0) if self.lines else None
        if isinstance(line, BaseException):
            raise line
        if line is not None:
            line()

    def close(self) -> None: ...


class Desk:
    """A writer under test and the queue its results come to."""

    def __init__(self) -> None:
        self.done: queue.SimpleQueue[WriteResult] = queue.SimpleQueue()
        self.writers: list[Writer] = []

    def writer(
        self, sink: Script, retries: WriteRetries = FAST, *, at_most_once: bool = False
    ) -> Writer:
        writer = Writer(
            sink, self.done.put, retries=retries, rng=random.Random(1), at_most_once=at_most_once
        )
        writer.start()
        self.writers.append(writer)
        return writer

    def result(self) -> WriteResult:
        return self.done.get(timeout=seconds(10))


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    assert all(writer.stop(10) for writer in desk.writers)


def pending(sequence: int = 1) -> PendingBatch:
    return PendingBatch(sequence, [[{}, {}]], 2, 0, np.zeros(2, np.int64), np.zeros(2, np.uint64))


def test_a_batch_written_is_reported_once_and_the_next_may_come(desk: Desk) -> None:
    writer = desk.writer(Script())
    for sequence in (1, 2):
        batch = pending(sequence)
        writer.submit(batch)
        result = desk.result()
        assert result.pending is batch
        assert (result.rejected, result.error) == ({}, None)
        assert not writer.busy
    assert desk.done.empty()


def test_the_same_batch_is_tried_until_it_is_durable(desk: Desk) -> None:
    """Promise 15: with Spark away the micro-batch is retried, and the process goes on.

    Storm 17: and it is not done before.
    """
    sink = Script(ConnectionRefusedError("gone"), OSError("still gone"), None)
    writer = desk.writer(sink)
    with capture_logs() as logs:
        writer.submit(pending(7))
        assert desk.result().error is None
    assert [sink.tried.get_nowait() for _ in range(3)] == [7, 7, 7]
    assert writer.retries == 2
    assert writer.last_error == "OSError: still gone"
    assert writer.failing_since is None
    assert [(log["event"], log["attempt"]) for log in logs] == [
        ("sink_write_failed", 1),
        ("sink_write_failed", 2),
        ("sink_recovered", 3),
    ]


def test_rows_rejected_is_a_success_with_reasons(desk: Desk) -> None:
    writer = desk.writer(Script(OSError("once"), RowsRejected({1: "too long"})))
    writer.submit(pending())
    result = desk.result()
    assert (result.rejected, result.error) == ({1: "too long"}, None)
    assert writer.failing_since is None


def test_a_sink_that_rejects_rows_it_never_got_has_failed(desk: Desk) -> None:
    desk.writer(Script(RowsRejected({2: "?"}))).submit(pending())
    error = desk.result().error
    assert isinstance(error, SinkFailed)
    assert "row 2 of a batch of 2" in str(error)


def test_a_busy_sink_is_asked_again_and_counts_as_healthy(desk: Desk) -> None:
    writer = desk.writer(Script(SinkBusy(0.001), SinkBusy(0.001), None), NEVER)
    writer.submit(pending())
    assert desk.result().error is None
    assert writer.retries == 0


def test_a_sink_that_cannot_heal_is_reported_at_once(desk: Desk) -> None:
    failed = SinkFailed("no such place")
    writer = desk.writer(Script(failed), NEVER)
    writer.submit(pending())
    assert desk.result().error is failed
    assert writer.last_error == "SinkFailed: no such place"


def test_a_sink_that_exits_is_heard_of(desk: Desk) -> None:
    desk.writer(Script(SystemExit(3))).submit(pending())
    assert "SystemExit" in str(desk.result().error)


def test_one_batch_at_a_time(desk: Desk) -> None:
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    sink = Script(lambda: gate.get(timeout=seconds(10)))
    writer = desk.writer(sink)
    writer.submit(pending(1))
    with pytest.raises(WriterBusy):
        writer.submit(pending(2))
    gate.put(None)
    assert desk.result().pending.sequence == 1


def test_a_failure_after_the_sink_was_busy_waits_no_longer_than_a_first_one(desk: Desk) -> None:
    busy = [SinkBusy(0.0)] * 20
    writer = desk.writer(Script(*busy, OSError("once"), None), WriteRetries(0.001, 3600.0))
    with capture_logs() as logs:
        writer.submit(pending())
        assert desk.result().error is None
    failed = [log["attempt"] for log in logs if log["event"] == "sink_write_failed"]
    assert failed == [1]


def test_stopping_interrupts_the_wait_and_reports_the_batch_as_not_durable(desk: Desk) -> None:
    sink = Script(OSError("away"))
    writer = desk.writer(sink, NEVER)
    writer.submit(pending(4))
    sink.tried.get(timeout=seconds(10))
    assert writer.stop(10)
    error = desk.result().error
    assert isinstance(error, WriterStopped)
    assert str(error).endswith("stopped before batch 4 became durable")
    assert writer.failing_since is not None


def test_stopping_waits_only_so_long_for_a_write_under_way(desk: Desk) -> None:
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    sink = Script(lambda: gate.get(timeout=seconds(10)))
    writer = desk.writer(sink)
    writer.submit(pending())
    sink.tried.get(timeout=seconds(10))
    assert not writer.stop(0.01)
    gate.put(None)
    assert writer.stop(10)
    assert desk.result().error is None


def test_pauses_double_up_to_the_longest_and_only_shrink_by_the_jitter() -> None:
    policy = WriteRetries()
    rng = random.Random(7)
    whole = [min(30.0, 0.5 * 2**n) for n in range(100)]
    for attempt, longest in enumerate(whole, start=1):
        assert 0.75 * longest <= policy.pause_seconds(attempt, rng) <= longest


def test_at_most_once_a_batch_whose_write_failed_is_not_tried_again(desk: Desk) -> None:
    sink = Script(OSError("answer lost"), None)
    writer = desk.writer(sink, NEVER, at_most_once=True)
    with capture_logs() as logs:
        writer.submit(pending(3))
        result = desk.result()
        assert result.error is None
        assert list(result.rejected) == [0, 1]
        assert "'script' failed and may be durable: OSError: answer lost" in result.rejected[0]
        assert writer.failing_since is not None
        writer.submit(pending(4))
        assert desk.result().rejected == {}
    assert [sink.tried.get_nowait() for _ in range(2)] == [3, 4]
    assert writer.failing_since is None
    assert [log["event"] for log in logs] == ["sink_batch_given_up", "sink_recovered"]


def test_at_most_once_a_batch_that_was_not_written_comes_again(desk: Desk) -> None:
    sink = Script(SinkBusy(0.001), None)
    desk.writer(sink, NEVER, at_most_once=True).submit(pending(3))
    result = desk.result()
    assert (result.rejected, result.error) == ({}, None)
    assert [sink.tried.get_nowait() for _ in range(2)] == [3, 3]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("no\nspace"), "OSError: no"),
        (OSError(), "OSError"),
        (
            RuntimeError("An error occurred while calling o7.commit.\n: java.io.IOException: full"),
            "RuntimeError: java.io.IOException: full",
        ),
    ],
)
def test_what_a_failure_says_is_told_in_one_line_and_what_java_said_is_not_left_out(
    desk: Desk, error: Exception, said: str
) -> None:
    """S02: an operator sees that the disk is full, and not where py4j was."""
    writer = desk.writer(Script(error))
    with capture_logs() as logs:
        writer.submit(pending())
        assert desk.result().error is None
    assert writer.last_error == said
    assert [line["error"] for line in logs if line["event"] == "sink_write_failed"] == [said]
