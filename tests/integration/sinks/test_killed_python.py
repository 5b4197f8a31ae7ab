"""A Delta table whose Python process is killed amid a commit that its JVM is at."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sinks.spark.driver import SparkDriver
from tests.worlds.delta_table import LINE, Table, group
from topology.errors import SinkBusy
from topology.transactional import Committed, Fence

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# The JVM answers nothing any more once the commit is done, or just before.
PROGRAM = """
import sys
from pathlib import Path
from service.jars.resolver import resolve
from sinks.spark.delta.kernel import DeltaLog
from sinks.spark.driver import SparkDriver
from tests.worlds.delta_table import LINE, Table, group
from topology.transactional import Fence

driver = SparkDriver("killed", {}, lambda: resolve("delta"), job_deadline_seconds=600)
sink = Table(Path(sys.argv[1]), driver).sink(exactly_once=True)
sink.fence([Fence(LINE, 1)])
original = DeltaLog.commit

def commit(log, *given):
    if sys.argv[2] == "after":
        original(log, *given)
    print("amid", driver._jvm.process.pid, flush=True)
    log.session._jvm.java.lang.Thread.sleep(600_000)

DeltaLog.commit = commit
sink.commit(sink.stage(group(1, 1, 2)))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_jvm_that_outlives_its_process_amid_a_commit_keeps_others_out_until_it_ends(
    tmp_path: Path, spark: SparkDriver, when: str
) -> None:
    """Promise 9: a zombie cannot finish a transaction after its successor has started."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), when],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            if line.startswith("amid "):
                break
            said += line
        else:
            pytest.fail(said)
        jvm = os.pidfd_open(int(line.split()[1]))
        signal.pidfd_send_signal(jvm, signal.SIGSTOP)  # else it ends as soon as its process has
        process.kill()
    table = Table(tmp_path, spark)
    try:
        successor = table.sink(exactly_once=True)
        with pytest.raises(SinkBusy, match="the JVM of a process that has ended still holds"):
            successor.fence([Fence(LINE, 2)])
        signal.pidfd_send_signal(jvm, signal.SIGCONT)
        assert select.select([jvm], [], [], 60)[0], "the JVM outlived its owner"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(jvm, signal.SIGKILL)
        os.close(jvm)
    txid = int(when == "after")
    assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, txid)]
    if not txid:
        successor.commit(successor.stage(group(1, 1, 2, epoch=2)))
    assert table.numbers() == [1, 2]
    for each in table.sinks:
        each.close()
