import queue
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from sinks import DiscardSink, ForeachSink
from sinks.errors import WriterStopped
from sinks.memory import MemorySink
from sinks.shares import is_to_commit
from sinks.writer import BatchCommitted, BatchStaged, SinkWriter, WriteRetries
from tests.support.batches import LINE, share
from tests.support.patience import seconds
from topology.errors import RowsRejected, SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Staged

FAST = WriteRetries(first_seconds=0.001, longest_seconds=0.002)
NEVER = WriteRetries(first_seconds=3600.0, longest_seconds=3600.0, jitter=0.0)


def scripted(name):
    def method(self, given):
        self.told.put(name)
        self.play(name)
        done = getattr(MemorySink, name)(self, given)
        self.play(f"after_{name}")
        return done

    return method


class Script(MemorySink[Any]):
    """Before or after what it is told, does what the next line of that script says."""

    path: str | None = None

    def __init__(self, **scripts):
        super().__init__("script")
        self.scripts = scripts
        self.told = queue.SimpleQueue()

    def play(self, name):
        script = self.scripts.get(name)
        line = script.pop(0) if script else None
        if isinstance(line, BaseException):
            raise line
        if line is not None:
            line()

    fence, stage, commit, discard = map(scripted, ("fence", "stage", "commit", "discard"))

    def hear(self):
        return self.told.get(timeout=seconds(10))

    def heard(self):
        return [self.told.get_nowait() for _ in range(self.told.qsize())]


class Desk:
    """Writers under test and the queue their results come to."""

    def __init__(self):
        self.done = queue.SimpleQueue()
        self.writers = []

    def writer(self, sink, retries=FAST, **options):
        self.writers.append(SinkWriter(sink, self.done.put, retries=retries, **options))
        self.writers[-1].start()
        return self.writers[-1]

    def staged(self):
        return self._next(BatchStaged)

    def committed(self):
        return self._next(BatchCommitted)

    def _next(self, kind):
        done = self.done.get(timeout=seconds(10))
        assert isinstance(done, kind)
        return done


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    assert all(writer.stop(10) for writer in desk.writers)


def group(*shares, number=1):
    shares = shares or (share(),)
    return Batch(number, [[each.txid for each in shares]], len(shares), shares)


def ready(sink, *shares):
    return MemorySink.stage(sink, group(*shares))


def test_a_commit_under_way_may_end_when_its_writer_is_stopped(desk):
    gate = queue.SimpleQueue()
    sink = Script(commit=[lambda: gate.get(timeout=seconds(10))])
    writer = desk.writer(sink)
    writer.commit(ready(sink, share(1)))
    sink.hear()
    assert not writer.stop(0.01), "the commit under way may end"
    gate.put(None)
    assert writer.stop(10)
    assert desk.committed().error is None


@pytest.mark.parametrize("task", ["fence", "stage", "commit"])
def test_what_fails_is_tried_again_until_it_is_done(desk, task):
    """Promise 15: with the sink away nothing is lost, and the process goes on.

    Storm 17: and a batch is not done before.
    """
    script = [ConnectionRefusedError("gone"), OSError("still gone")]
    sink = Script(**{task: script})
    writer = desk.writer(sink)
    with capture_logs() as logs:
        if task == "fence":
            writer.fence(Fence(LINE, 1)).result(seconds(10))
        elif task == "stage":
            writer.stage(group())
            assert desk.staged().error is None
        else:
            writer.write(rows(7))
            assert desk.committed().error is None
    assert sink.heard()[-3:] == [task] * 3
    assert (writer.retries, writer.last_error) == (2, "OSError: still gone")
    assert writer.failing_since is None
    assert [(log["event"], log["task"], log["attempt"]) for log in logs] == [
        ("sink_write_failed", task, 1),
        ("sink_write_failed", task, 2),
        ("sink_recovered", task, 3),
    ]
    assert desk.done.empty()


def test_a_commit_whose_reply_was_lost_is_repeated_and_finds_itself_done(desk):
    """Storm 45: a crash between the commit and knowing of it; the txid tells."""
    sink = Script(after_commit=[OSError("reply lost")])
    desk.writer(sink).commit(ready(sink, share(1), share(1, "orders[1]")))
    assert desk.committed().error is None
    assert sink.heard() == ["commit", "commit"]
    assert sink.rows == [1, 1]


def test_what_a_successor_committed_under_the_txid_is_not_taken_for_ours(desk):
    """Promise 9: a zombie that lost its reply learns that it was fenced."""

    def taken_over():
        MemorySink.fence(sink, [Fence(LINE, 2)])
        other = Batch(1, [["the successor's"]], 1, (share(1, epoch=2),))
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


@pytest.mark.parametrize("error", [SinkFailed("no such place"), SinkFenced(LINE, 1, 2)])
def test_what_cannot_heal_is_reported_at_once(desk, error):
    sink = Script(fence=[error], stage=[error], commit=[error])
    writer = desk.writer(sink, NEVER)
    assert writer.fence(Fence(LINE, 1)).exception(seconds(10)) is error
    writer.stage(group())
    staged = desk.staged()
    assert (staged.staged, staged.error) == (None, error)
    writer.commit(ready(sink))
    assert desk.committed().error is error
    assert writer.last_error is not None
    assert writer.last_error.startswith(type(error).__name__)


def test_lines_are_fenced_together_and_without_those_of_others(desk):
    gate = queue.SimpleQueue()
    sink = Script(fence=[lambda: gate.get(timeout=seconds(10))])
    MemorySink.fence(sink, [Fence("b", 7)])
    writer = desk.writer(sink)
    first = writer.fence()
    assert sink.hear() == "fence"
    others = [writer.fence(Fence(line, 2)) for line in "abc"]
    gate.put(None)
    b = others.pop(1).exception(seconds(10))
    assert [each.result(seconds(10)) for each in (first, *others)] == [0, 0, 0]
    assert isinstance(b, SinkFenced)
    assert sink.heard() == ["fence", "fence"], "once with b, and once without"


def test_sink_that_breaks_its_contract_has_failed(desk):
    sink = Script()
    sink.fence = lambda _fences: [Committed("flights[0]", 1, 0)]
    sink.stage = lambda batch: Staged(batch.shares[1:], 1, (), {1: "?"})
    writer = desk.writer(sink)
    writer.stage(group())
    assert "rejected row 1 of a batch of 1" in str(desk.staged().error)
    error = writer.fence(Fence(LINE, 1)).exception(seconds(10))
    assert isinstance(error, SinkFailed)
    assert "found flights[0], expected orders[0]" in str(error)
    writer.stage(Batch(1, [[1, 2]], 2, (share(),)))
    assert "staged other shares" in str(desk.staged().error)
    sink = Script(commit=[RowsRejected({0: "?"}), SystemExit(3), RowsRejected({2: "?"})])
    writer = desk.writer(sink)
    for reason in ("rejected rows that belong to transactions", "SystemExit"):
        writer.commit(ready(sink))
        error = desk.committed().error
        assert isinstance(error, SinkFailed)
        assert reason in str(error)
    writer.write(rows())
    assert "row 2 of a batch of 2" in str(desk.committed().error)


def test_what_is_discarded_goes_on_the_staging_thread_and_nothing_is_told(desk):
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


def test_stopping_interrupts_the_wait_and_reports_all_that_is_not_done(desk):
    sink = Script(stage=[OSError("away")], commit=[OSError("away")])
    writer = desk.writer(sink, NEVER)
    writer.stage(group(number=7))
    writer.stage(group(number=8))
    writer.commit(ready(sink))
    fenced = writer.fence(Fence(LINE, 1))
    assert {sink.hear(), sink.hear()} == {"stage", "commit"}
    assert SinkWriter(Script(), desk.done.put).stop(0), "it was never started"
    assert writer.stop(10)
    told = {type(done): done for done in (desk.done.get(timeout=seconds(10)) for _ in range(3))}
    assert all(isinstance(done.error, WriterStopped) for done in told.values())
    assert "before orders[0] 1 was committed" in str(told[BatchCommitted].error)
    with pytest.raises(WriterStopped, match=r"before orders\[0\] was fenced"):
        fenced.result(0)
    assert "before batch 8 was staged" in str(told[BatchStaged].error)
    assert sink.heard() == []
    assert writer.failing_since is not None


def rows(sequence=1):
    return Batch(sequence, [["a", "b"]], 2)


def test_the_next_batch_is_staged_while_one_is_committed_and_they_land_in_order(desk):
    gate = queue.SimpleQueue()
    sink = Script(commit=[lambda: gate.get(timeout=seconds(10))])
    writer = desk.writer(sink)
    assert writer.fence().result(seconds(10)) == 0
    assert sink.hear() == "fence"
    writer.write(Batch(1, [["first"]], 1))
    writer.write(Batch(2, [["second"]], 1))
    assert sorted(sink.hear() for _ in range(3)) == ["commit", "stage", "stage"]
    assert sink.rows == []
    gate.put(None)
    done = [desk.committed() for _ in range(2)]
    assert [(each.error, each.staged.num_rows, each.staged.rejected) for each in done] == (
        [(None, 1, {})] * 2
    )
    assert sink.rows == ["first", "second"]


def test_rows_that_only_the_commit_refuses_are_rejected_beside_the_others(desk):
    sink = Script(commit=[OSError("once"), RowsRejected({1: "too long"})])
    picky = {"num_rows": 1, "rejected": {0: "too short"}}
    sink.stage = lambda batch: replace(MemorySink.stage(sink, batch), **picky)
    writer = desk.writer(sink)
    writer.write(rows())
    done = desk.committed()
    assert (done.staged.rejected, done.error) == ({0: "too short", 1: "too long"}, None)
    assert done.staged.num_rows == 0
    assert writer.failing_since is None


def test_a_batch_that_cannot_be_committed_is_let_go_and_one_that_cannot_be_staged_is_told(desk):
    failed = SinkFailed("no such place")
    sink = Script(commit=[failed])
    desk.writer(sink, NEVER).write(rows())
    assert desk.committed().error is failed
    assert sink.heard() == ["stage", "commit", "discard"]
    desk.writer(Script(stage=[failed]), NEVER).write(rows())
    assert desk.staged().error is failed


def test_a_failure_after_the_sink_was_busy_waits_no_longer_than_a_first_one(desk):
    busy = [SinkBusy(0.0)] * 20
    sink = Script(stage=[SinkBusy(0.001)], commit=[*busy, OSError("once")])
    writer = desk.writer(sink, WriteRetries(0.001, 3600.0))
    with capture_logs() as logs:
        writer.write(rows())
        assert desk.committed().error is None
    assert (writer.retries, len(sink.heard())) == (1, 2 + 22)
    failed = [log["attempt"] for log in logs if log["event"] == "sink_write_failed"]
    assert failed == [1]


def test_pauses_double_up_to_the_longest_and_only_shrink_by_the_jitter():
    policy = WriteRetries()
    whole = [min(30.0, 0.5 * 2**n) for n in range(100)]
    for attempt, longest in enumerate(whole, start=1):
        assert 0.75 * longest <= policy.pause_seconds(attempt) <= longest


def test_at_most_once_a_batch_whose_commit_failed_is_not_tried_again(desk):
    sink = Script(commit=[OSError("answer lost")])
    writer = desk.writer(sink, NEVER, at_most_once=True)
    with capture_logs() as logs:
        writer.write(rows(3))
        done = desk.committed()
        assert (done.error, done.staged.num_rows) == (None, 0)
        assert list(done.staged.rejected) == [0, 1]
        reason = done.staged.rejected[0]
        assert "'script' failed and may be durable: OSError: answer lost" in reason
        assert writer.failing_since is not None
        writer.write(rows(4))
        assert desk.committed().staged.rejected == {}
    assert sink.heard() == ["stage", "commit", "discard", "stage", "commit"]
    assert writer.failing_since is None
    assert [log["event"] for log in logs] == ["sink_batch_given_up", "sink_recovered"]


def test_at_most_once_what_wrote_nothing_is_tried_again(desk):
    sink = Script(stage=[OSError("away")], commit=[SinkBusy(0.001)])
    desk.writer(sink, at_most_once=True).write(rows(3))
    done = desk.committed()
    assert (done.staged.rejected, done.error) == ({}, None)
    assert sink.heard() == ["stage", "stage", "commit", "commit"]


JAVA = "An error occurred while calling o7.commit.\n: java.io.IOException: full"
FULL = OSError(28, "No space left on device")
FREE = r"OSError: .*No space left on device; /orders: [\d,.]+ MiB free of [\d,.]+ MiB"


@pytest.mark.parametrize(
    ("path", "error", "told"),
    [
        ("file:///orders", FULL, FREE),
        (Path("/orders"), FULL, FREE),
        *(
            (path, FULL, "OSError: .*No space left on device")
            for path in ("s3://orders", "/" + "x" * 300, b"/orders", 7)  # no disk has such a name
        ),
        (None, OSError("no\nspace"), "OSError: no"),
        (None, OSError(), "OSError"),
        (None, RuntimeError(JAVA), r"RuntimeError: java\.io\.IOException: full"),
    ],
)
def test_failure_is_told_in_one_line_and_a_full_disk_with_its_free_space(desk, path, error, told):
    """S02: with any library's words for it, and whatever a user's sink calls `path`.

    An operator sees that the disk is full, and not where py4j was.
    """
    sink = Script(commit=[error])
    sink.path = path
    writer = desk.writer(sink)
    writer.write(rows())
    assert desk.committed().error is None
    assert re.fullmatch(told, writer.last_error or "")


def standing(txid, line=LINE, epoch=1):
    return Committed(line, epoch, txid)


def test_next_txid_of_each_line_is_to_be_committed_and_others_are_not():
    """Promise 14."""
    shares = [share(7), share(1, "orders[1]")]
    assert is_to_commit(shares, [standing(6), standing(0, "orders[1]")])
    assert not is_to_commit(shares, [standing(7), standing(4, "orders[1]")])
    assert is_to_commit([], []), "rows of no transaction"
    with pytest.raises(SinkFailed, match=r"orders\[1\] 1 is not committed, but others"):
        is_to_commit(shares, [standing(7), standing(0, "orders[1]")])


@pytest.mark.parametrize("has", [0, 5])
def test_sink_that_lost_commits_gets_no_more(has):
    """Promise 14: put back to an older state under a running service, rows would be missing."""
    with pytest.raises(SinkFailed, match=rf"up to {has}, but those up to 6 were committed"):
        is_to_commit([share(7)], [standing(has)])


def test_sinks_without_transactions_get_every_row():
    got = []
    foreach, discard = ForeachSink(got.append, name="mine"), DiscardSink()
    columns = pa.RecordBatch.from_pylist([{"n": 2}])
    for sink in (foreach, discard):
        sink.write(Batch(1, [[{"n": 1}, None], columns], 3))
    assert got == [[{"n": 1}, None, {"n": 2}]]
    assert discard.rows == 3
    assert foreach.name == "mine"


def test_importing_the_sinks_imports_no_library_of_a_store():
    code = (
        "import sys, sinks; from sinks.spark.driver import SparkDriver; "
        "late = {'pyspark', 'py4j', 'confluent_kafka', 'pandas', 'deltalake', 'pyiceberg'}; "
        "print(sorted(late & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=True, timeout=seconds(60))
    assert done.stdout.strip() == b"[]"
