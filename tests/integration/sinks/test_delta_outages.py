"""A Delta table whose JVM dies under a commit."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from sinks.errors import SparkDied
from sinks.spark.delta.kernel import DeltaLog
from sinks.spark.driver import SparkDriver
from tests.worlds.delta_table import LINE, Table, group
from topology.errors import SinkFenced
from topology.transactional import Committed, Fence

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def jvm(driver: SparkDriver) -> "subprocess.Popen[bytes]":
    assert driver._jvm is not None
    return driver._jvm.process


def dying(monkeypatch: pytest.MonkeyPatch, driver: SparkDriver, *, after: bool) -> None:
    """Have the JVM killed before or right after the next commit, whose reply is lost."""
    original = DeltaLog.commit

    def commit(self: DeltaLog, *given: Any) -> None:
        monkeypatch.setattr(DeltaLog, "commit", original)
        if after:
            original(self, *given)
        process = jvm(driver)
        process.kill()
        process.wait()
        original(self, *given)

    monkeypatch.setattr(DeltaLog, "commit", commit)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_jvm_killed_inside_a_commit_leaves_it_done_or_not_and_that_can_be_read(
    tmp_path: Path, spark: SparkDriver, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Promise 15: with Spark away it restarts Spark and retries; nothing comes twice."""
    table, restarts = Table(tmp_path, spark), spark.restarts
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1, 2))
    dying(monkeypatch, spark, after=after)
    with pytest.raises(SparkDied):
        sink.commit(staged)
    assert sink.committed([LINE]) == [Committed(LINE, 1, int(after))]
    successor = table.sink(exactly_once=True)
    if after:
        # Its rows are in, so whoever thinks it failed must not remove them.
        successor.fence([Fence(LINE, 2)])
        with pytest.raises(SinkFenced):
            sink.commit(staged)
        sink.discard(staged)
    else:
        sink.commit(staged)
    assert table.numbers() == [1, 2]
    assert spark.restarts == restarts + 1
    for each in table.sinks:
        each.close()
