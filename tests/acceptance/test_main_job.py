"""The main job as a newcomer runs it (`make run`), on a part of the flights."""

import os
import signal
import sys
from pathlib import Path

import pytest

from examples.flights.latest import by_hand
from tests.acceptance import evidence, processes
from tests.acceptance.harness import Run
from tests.oracles import flights as oracle

pytestmark = pytest.mark.acceptance

FLIGHTS = 10_000
MANY_FLIGHTS = 300_000  # so many that they are not all read at once
KEYS = {"retried", "records_per_second", "dead_letters"}  # besides those that are compared
INTERRUPTED = 130


def start(folder: Path, flights: int, *more: str) -> Run:
    options = ["--limit", str(flights), "--state-dir", str(folder / "state"), *more]
    command = [sys.executable, "-m", "examples.flights", *options]
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return Run(command, folder / "job", {"TMPDIR": str(temporary)})


def nothing_is_left_behind(run: Run, folder: Path) -> None:
    assert run.descendants() == {}
    assert processes.naming(str(folder)) == {}
    assert list((folder / "tmp").glob("headrace-*")) == []


@pytest.mark.nightly
def test_main_job_reconciles_with_both_sinks(tmp_path):
    """Promise 3: each flight is in the table, filtered, or among the dead letters.

    Its second run, with the other sink, begins anew in the same folder.
    """
    answer = oracle.expected(FLIGHTS)
    shown = []
    for sink in ("spark", "delta"):
        run = start(tmp_path, FLIGHTS, "--sink", sink)
        try:
            assert run.wait() == 0, run.tail()
            account = run.account()
            assert account.keys() >= KEYS
            for name in ("read", "rows", "filtered", "dead_lettered"):
                assert account[name] == getattr(answer, name)
            assert account["unresolved"] == 0
            for part in account["partitions"].values():
                assert part["committed"] == part["log_end"]
            assert sum(part["log_end"] for part in account["partitions"].values()) == answer.read
            table = evidence.read_table(Path(account["table"].removeprefix("file://")))
            difference = oracle.differences(table, answer.table)
            assert difference.num_rows == 0, difference.slice(0, 5).to_pylist()
            shown.append(run.output.splitlines()[:-1])
            nothing_is_left_behind(run, tmp_path)
        finally:
            run.end()
    assert shown[0] == shown[1]
    assert [line.split()[0] for line in shown[0][1:]] == [each.code for each in by_hand(FLIGHTS)]


@pytest.mark.nightly
def test_ctrl_c_drains_the_main_job_and_its_processes(tmp_path):
    """Promise 16: what was in flight is finished, and everything that was started ends."""
    run = start(tmp_path, MANY_FLIGHTS)
    try:
        run.until("records are read", lambda: "step_failing" in run.errors)
        assert len(run.descendants()) >= 4, "the job, Kafka, ZooKeeper and Spark"
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does it
        assert run.wait(75) == INTERRUPTED, run.tail()
        nothing_is_left_behind(run, tmp_path)
        account = run.account()
        assert 0 < account["read"] < MANY_FLIGHTS
        assert account["unresolved"] == 0
        resolved = account["written"] + account["filtered"] + account["dead_lettered"]
        assert account["read"] == resolved
        assert sum(part["committed"] for part in account["partitions"].values()) == resolved
        table = tmp_path / "state" / "flights" / "warehouse" / "flight_events"
        assert evidence.read_table(table).num_rows == account["rows"]
        assert "Traceback" not in run.errors
    finally:
        run.end()
