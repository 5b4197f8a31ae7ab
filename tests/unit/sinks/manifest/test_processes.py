"""Processes that write one table at the same time, and one that is killed in the middle."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sinks.manifest.reading import manifest_files
from tests.support.patience import seconds
from tests.worlds.manifest_table import Table

COMMITS = 15

PROGRAM = f"""
import os
import signal
import sys
from pathlib import Path
from sinks.manifest import log
from tests.worlds.manifest_table import Table, group
from topology.transactional import Fence

table, line = Table(Path(sys.argv[1])), sys.argv[2]
sink = table.sink()
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
real, links, killed = os.link, [], sys.argv[4]

def link(source, target):
    links.append(target)
    for place in ("before", "after"):
        if len(links) == {COMMITS} // 2 and killed == place:
            os.kill(os.getpid(), signal.SIGKILL)
        if place == "before":
            real(source, target)

log.os.link = link
(found,) = sink.fence([Fence(line, int(sys.argv[3]))])
for txid in range(found.txid + 1, {COMMITS} + 1):
    number = int(line) * 1000 + txid
    sink.commit(sink.stage(group(txid, number, epoch=int(sys.argv[3]), line=line)))
    sys.stdout.write(f"{{txid}}\\n")
    sys.stdout.flush()
"""


def start(
    warehouse: Path, line: int, epoch: int = 1, killed: str = "never"
) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(warehouse), str(line), str(epoch), killed],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_two_processes_and_the_successor_of_a_killed_one_lose_and_repeat_nothing(
    tmp_path: Path,
) -> None:
    """Promise 9, Storm 45."""
    table = Table(tmp_path)
    with start(tmp_path, 1) as first, start(tmp_path, 2) as second:
        go(first)
        go(second)
        assert second.stdout is not None
        while int(second.stdout.readline()) < COMMITS // 3:
            pass
        second.kill()
        with start(tmp_path, 2, epoch=2) as successor:
            go(successor)
            assert successor.wait(seconds(60)) == 0
        assert first.wait(seconds(60)) == 0
    assert table.versions() == list(range(len(table.entries())))
    wanted = [line * 1000 + txid for line in (1, 2) for txid in range(1, COMMITS + 1)]
    assert table.numbers() == wanted
    assert len(manifest_files(table.path)) == 2 * COMMITS
    drafts = [path for path in table.log.iterdir() if path.name.startswith(".")]
    assert len(drafts) <= 1, "only of the one that was killed"


@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_process_that_is_killed_inside_its_commit_has_done_it_or_not(
    tmp_path: Path, killed: str
) -> None:
    """Storm 45: right before an entry has its name, and right after."""
    table = Table(tmp_path)
    with start(tmp_path, 1, killed=killed) as first:
        go(first)
        assert first.wait(seconds(60)) == -signal.SIGKILL
    done = COMMITS // 2 - 2  # the first links made the table, and the fence
    assert len(table.rows()) == done - (killed == "before")
    with start(tmp_path, 1, epoch=2) as successor:
        go(successor)
        assert successor.wait(seconds(60)) == 0
    assert table.numbers() == [1000 + txid for txid in range(1, COMMITS + 1)]
    assert table.entries()[-1]["lines"]["pipeline/sink/1"]["epoch"] == 2
