import queue
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from sinks.errors import WriterBusy, WriterStopped
from sinks.memory import MemorySink
from sinks.transaction_writer import (
    Done,
    FencesRaised,
    GroupCommitted,
    GroupStaged,
    TransactionWriter,
)
from sinks.tries import WriteRetries
from tests.support.patience import seconds
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.transactional import Committed, Fence, Group, Share, Staged

FAST = WriteRetries(first_seconds=0.001, longest_seconds=0.002)
NEVER = WriteRetries(first_seconds=3600.0, longest_seconds=3600.0, jitter=0.0)
LINE = "orders[0]"

Line = BaseException | Callable[[], object] | None


class Script(MemorySink[Any]):
    """Before or after what it is told, does what the next line of that script says."""

    def __init__(self, **scripts: list[Line]) -> None:
        super().__init__("script")
        self.scripts = scripts
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def play(self, name: str) -> None:
        script = self.scripts.get(name)
        line = script.pop(0) if script else None
        if isinstance(line, BaseException):
            raise line
        if line is not None:
            line()

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        self.told.put("fence")
        self.play("fence")
        return super().fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        self.told.put("committed")
        self.play("committed")
        return super().committed(lines)

    def stage(self, group: Group) -> Staged:
        self.told.put("stage")
        self.play("stage")
        return super().stage(group)

    def commit(self, staged: Staged) -> None:
        self.told.put("commit")
        self.play("commit")
        super().commit(staged)
        self.play("after_commit")

    def discard(self, staged: Staged) -> None:
        self.told.put("discard")
        self.play("discard")

    def heard(self) -> list[str]:
        return [self.told.get_nowait() for _ in range(self.told.qsize())]


class Desk:
    """Writers under test and the queue their results come to."""

    def __init__(self) -> None:
        self.done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self.writers: list[TransactionWriter] = []

    def writer(
        self,
        sink: MemorySink[Any],
        retries: WriteRetries = FAST,
        at: Callable[[str], object] | None = None,
    ) -> TransactionWriter:
        writer = TransactionWriter(
            sink, self.done.put, retries=retries, rng=random.Random(1), at=at
        )
        writer.start()
        self.writers.append(writer)
        return writer

    def fenced(self) -> FencesRaised:
        done = self.done.get(timeout=seconds(10))
        assert isinstance(done, FencesRaised)
        return done

    def staged(self) -> GroupStaged:
        done = self.done.get(timeout=seconds(10))
        assert isinstance(done, GroupStaged)
        return done

    def committed(self) -> GroupCommitted:
        done = self.done.get(timeout=seconds(10))
        assert isinstance(done, GroupCommitted)
        return done


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    assert all(writer.stop(10) for writer in desk.writers)


def share(txid: int = 1, line: str = LINE, epoch: int = 1) -> Share:
    return Share(line, epoch, txid, 1, txid, txid + 1, "0" * 32, 1)


def group(*shares: Share, number: int = 1) -> Group:
    shares = shares or (share(),)
    return Group(number, shares, [[each.txid for each in shares]], len(shares))


def ready(sink: MemorySink[Any], *shares: Share) -> Staged:
    return MemorySink.stage(sink, group(*shares))


def test_a_group_is_fenced_staged_and_committed_and_each_is_told_once(desk: Desk) -> None:
    sink = Script()
    writer = desk.writer(sink)
    writer.fence([Fence(LINE, 4)])
    assert desk.fenced() == FencesRaised((Fence(LINE, 4),), [Committed(LINE, 4, 0)], None)
    wanted = group(share(epoch=4))
    writer.stage(wanted)
    staged = desk.staged()
    assert (staged.group, staged.error) == (wanted, None)
    assert staged.staged is not None
    assert sink.rows == []
    writer.commit(staged.staged)
    done = desk.committed()
    assert (done.staged, done.error) == (staged.staged, None)
    assert done.seconds >= 0
    assert sink.rows == [1]
    assert not writer.busy
    assert desk.done.empty()


def test_the_next_group_is_staged_while_one_is_committed(desk: Desk) -> None:
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    sink = Script(commit=[lambda: gate.get(timeout=seconds(10))])
    writer = desk.writer(sink)
    writer.commit(ready(sink, share(1)))
    writer.stage(group(share(2), number=2))
    writer.stage(group(share(3), number=3))
    assert [desk.staged().group.number for _ in range(2)] == [2, 3]
    assert writer.busy
    assert writer.is_committing
    gate.put(None)
    assert desk.committed().error is None
    assert not writer.is_committing


def test_one_commit_at_a_time(desk: Desk) -> None:
    """Promise 14: what follows a commit that fails must not be committed before it."""
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    sink = Script(commit=[lambda: gate.get(timeout=seconds(10))])
    writer = desk.writer(sink)
    writer.commit(ready(sink, share(1)))
    with pytest.raises(WriterBusy):
        writer.commit(ready(sink, share(2)))
    gate.put(None)
    desk.committed()
    writer.commit(ready(sink, share(2)))
    assert desk.committed().error is None
    assert sink.rows == [1, 2]


@pytest.mark.parametrize("task", ["fence", "stage"])
def test_what_fails_is_tried_again_until_it_is_done(desk: Desk, task: str) -> None:
    """Promise 15: with the sink away nothing is lost, and the process goes on."""
    script: list[Line] = [ConnectionRefusedError("gone"), OSError("still gone")]
    sink = Script(**{task: script})
    writer = desk.writer(sink)
    with capture_logs() as logs:
        if task == "fence":
            writer.fence([Fence(LINE, 1)])
            assert desk.fenced().error is None
        else:
            writer.stage(group())
            assert desk.staged().error is None
    assert sink.heard() == [task] * 3
    assert writer.retries == 2
    assert writer.last_error == "OSError: still gone"
    assert writer.failing_since is None
    assert [(log["event"], log["task"], log["attempt"]) for log in logs] == [
        ("sink_write_failed", task, 1),
        ("sink_write_failed", task, 2),
        ("sink_recovered", task, 3),
    ]


def test_a_commit_that_is_not_there_after_an_error_is_tried_again(desk: Desk) -> None:
    sink = Script(commit=[OSError("refused")])
    desk.writer(sink).commit(ready(sink))
    assert desk.committed().error is None
    assert sink.heard() == ["commit", "committed", "commit"]
    assert sink.rows == [1]


def test_a_commit_whose_reply_was_lost_is_found_and_not_repeated(desk: Desk) -> None:
    """Storm 45: a crash between the commit and knowing of it; the txid tells."""
    sink = Script(after_commit=[OSError("reply lost")])
    with capture_logs() as logs:
        desk.writer(sink).commit(ready(sink, share(1), share(1, "orders[1]")))
        assert desk.committed().error is None
    assert sink.heard() == ["commit", "committed"]
    assert sink.rows == [1, 1]
    assert [log["event"] for log in logs] == [
        "sink_write_failed",
        "sink_commit_found",
        "sink_recovered",
    ]


def test_the_question_what_is_committed_is_asked_until_it_is_answered(desk: Desk) -> None:
    sink = Script(after_commit=[OSError("reply lost")], committed=[OSError("away"), SinkBusy(0)])
    desk.writer(sink).commit(ready(sink))
    assert desk.committed().error is None
    assert sink.heard() == ["commit", "committed", "committed", "committed"]


def test_a_lost_reply_of_a_group_with_a_line_taken_over_since_is_told_by_the_others(
    desk: Desk,
) -> None:
    def lost() -> None:
        MemorySink.fence(sink, [Fence("orders[1]", 2)])
        raise OSError("reply lost")

    sink = Script(after_commit=[lost])
    desk.writer(sink).commit(ready(sink, share(1), share(1, "orders[1]")))
    assert desk.committed().error is None
    assert sink.rows == [1, 1]


def test_what_a_successor_committed_under_the_txid_is_not_taken_for_ours(desk: Desk) -> None:
    """Promise 9: a zombie that lost its reply learns that it was fenced."""

    def taken_over() -> None:
        MemorySink.fence(sink, [Fence(LINE, 2)])
        other = Group(1, (share(1, epoch=2),), [["the successor's"]], 1)
        MemorySink.commit(sink, MemorySink.stage(sink, other))
        raise OSError("refused")

    sink = Script(commit=[taken_over])
    writer = desk.writer(sink)
    writer.commit(ready(sink))
    error = desk.committed().error
    assert isinstance(error, SinkFenced)
    assert (error.line, error.epoch, error.found) == (LINE, 1, 2)
    assert sink.rows == ["the successor's"]
    assert writer.failing_since is None, "the sink is well"


def test_a_busy_sink_is_asked_again_and_counts_as_healthy(desk: Desk) -> None:
    sink = Script(commit=[SinkBusy(0.001)], stage=[SinkBusy(0.001)])
    writer = desk.writer(sink, NEVER)
    writer.stage(group())
    staged = desk.staged().staged
    assert staged is not None
    writer.commit(staged)
    assert desk.committed().error is None
    assert writer.retries == 0
    assert sink.heard() == ["stage", "stage", "commit", "commit"]


@pytest.mark.parametrize("error", [SinkFailed("no such place"), SinkFenced(LINE, 1, 2)])
def test_what_cannot_heal_is_reported_at_once(desk: Desk, error: Exception) -> None:
    sink = Script(fence=[error], stage=[error], commit=[error])
    writer = desk.writer(sink, NEVER)
    writer.fence([Fence(LINE, 1)])
    fenced = desk.fenced()
    assert (fenced.committed, fenced.error) == ([], error)
    writer.stage(group())
    staged = desk.staged()
    assert (staged.staged, staged.error) == (None, error)
    writer.commit(ready(sink))
    assert desk.committed().error is error
    assert writer.last_error is not None
    assert writer.last_error.startswith(type(error).__name__)
    assert not writer.busy


def test_a_sink_that_exits_is_heard_of(desk: Desk) -> None:
    sink = Script(commit=[SystemExit(3)])
    desk.writer(sink).commit(ready(sink))
    error = desk.committed().error
    assert isinstance(error, SinkFailed)
    assert "SystemExit" in str(error)


def test_a_sink_that_rejects_rows_it_never_got_has_failed(desk: Desk) -> None:
    class Wrong(Script):
        def stage(self, group: Group) -> Staged:
            return Staged(group.shares, 0, (), {1: "?"})

    desk.writer(Wrong()).stage(group())
    assert "rejected row 1 of a batch of 1" in str(desk.staged().error)


def test_a_sink_that_stages_other_shares_has_failed(desk: Desk) -> None:
    class Wrong(Script):
        def stage(self, group: Group) -> Staged:
            return Staged((), 1)

    desk.writer(Wrong()).stage(group())
    assert "staged other shares" in str(desk.staged().error)


def test_a_sink_that_tells_of_other_lines_has_failed(desk: Desk) -> None:
    class Wrong(Script):
        def fence(self, fences: Sequence[Fence]) -> list[Committed]:
            return [Committed("flights[0]", 1, 0)]

    desk.writer(Wrong()).fence([Fence(LINE, 1)])
    assert "was asked of orders[0], it told of flights[0]" in str(desk.fenced().error)


def test_what_is_discarded_goes_on_the_staging_thread_and_nothing_is_told(desk: Desk) -> None:
    sink = Script(discard=[OSError("file is held")])
    writer = desk.writer(sink)
    with capture_logs() as logs:
        writer.discard(ready(sink))
        writer.discard(ready(sink))
        writer.stage(group())
        assert desk.staged().error is None
    assert sink.heard() == ["discard", "discard", "stage"]
    assert [log["event"] for log in logs] == ["sink_discard_failed"]
    assert desk.done.empty()
    assert not writer.busy


def test_stopping_interrupts_the_wait_and_reports_all_that_is_not_done(desk: Desk) -> None:
    sink = Script(stage=[OSError("away")], commit=[OSError("away")])
    writer = desk.writer(sink, NEVER)
    writer.stage(group(number=7))
    writer.stage(group(number=8))
    writer.commit(ready(sink))
    writer.fence([Fence(LINE, 1)])
    assert {sink.told.get(timeout=seconds(10)), sink.told.get(timeout=seconds(10))} == {
        "stage",
        "commit",
    }
    assert writer.stop(10)
    told = {type(done): done for done in (desk.done.get(timeout=seconds(10)) for _ in range(4))}
    assert all(isinstance(done.error, WriterStopped) for done in told.values())
    assert "before orders[0] 1 was committed" in str(told[GroupCommitted].error)
    assert "before orders[0] was fenced" in str(told[FencesRaised].error)
    assert "before group 8 was staged" in str(told[GroupStaged].error)
    assert sink.heard() == []
    assert writer.failing_since is not None


def test_stopping_waits_only_so_long_for_a_commit_under_way(desk: Desk) -> None:
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    sink = Script(commit=[lambda: gate.get(timeout=seconds(10))])
    writer = desk.writer(sink)
    writer.commit(ready(sink))
    sink.told.get(timeout=seconds(10))
    assert not writer.stop(0.01)
    gate.put(None)
    assert writer.stop(10)
    assert desk.committed().error is None


def test_one_that_was_never_started_stops(desk: Desk) -> None:
    assert TransactionWriter(Script(), desk.done.put).stop(0)


def test_the_points_of_the_way_are_told_in_order(desk: Desk) -> None:
    points: queue.SimpleQueue[str] = queue.SimpleQueue()
    sink = Script()
    writer = desk.writer(sink, at=points.put)
    writer.fence([Fence(LINE, 1)])
    desk.fenced()
    writer.stage(group())
    staged = desk.staged().staged
    assert staged is not None
    writer.commit(staged)
    desk.committed()
    assert [points.get_nowait() for _ in range(points.qsize())] == [
        "sink_before_fence",
        "sink_after_fence",
        "sink_before_stage",
        "sink_before_commit",
        "sink_after_commit",
    ]
