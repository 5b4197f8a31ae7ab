"""P05: a process has no file descriptors left."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.replicas import Replicas
from tests.support.patience import until
from tests.support.service import Window

pytestmark = [pytest.mark.integration, pytest.mark.faults]

TOPOLOGIES = "tests.faults.topologies"

WATCHED_SECONDS = 3.0
MOST_LOAD = 0.6  # of a processor; one that spins has 1
TOO_FEW = (12, 24)
ENOUGH = 256
KAFKA_AVAILABLE = "headrace_service_kafka_available_state"


def test_without_descriptors_it_waits_says_so_and_does_not_spin(trial):
    """The sink cannot open its files; the metrics' port answers. Then there are some again."""
    window, hungry = Window(), trial.folder / "hungry-a"
    environment = window.environment | {"HUNGRY_FOR": "descriptors"}
    with Replicas(trial, "delta", topics={"in-a": 3}) as replicas:
        replicas.begin("a", environment=environment, prefix=_limited(ENOUGH))
        a = replicas.runs["a"]
        hungry.touch()
        replicas.until("it says so", lambda: "Too many open files" in _told(window))
        until("it is scraped", lambda: window.metric(KAFKA_AVAILABLE) == 1)
        with crowd(window.port):
            assert _load(a.pid) < MOST_LOAD
        until("it answers", lambda: "Too many open files" in _told(window))
        assert a.alive, a.tail()
        hungry.unlink()
        assert a.events("descriptors_exhausted")
        assert a.events("sink_write_failed")
        replicas.goes_on()
        replicas.until("ready again", lambda: window.problems() == [])
        replicas.finish()


@pytest.mark.parametrize("limit", TOO_FEW)
def test_a_start_without_descriptors_ends_with_a_message(trial, limit):
    with Replicas(trial, "lines", topics={"in-a": 1}) as replicas:
        replicas.start("a", prefix=_limited(limit))
        a = replicas.runs["a"]
        assert a.wait(60) > 0, a.tail()
        assert "Too many open files" in a.errors
        assert "Traceback" not in a.errors
        replicas.start("a")
        replicas.settle("a")
        replicas.finish()


@contextmanager
def crowd(port: int) -> Iterator[None]:
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
    try:
        yield
    finally:
        for each in clients:
            each.close()


def _limited(descriptors: int) -> tuple[str, ...]:
    """What to put before a command that may have so many; the process stays the same."""
    return ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh")


def _told(window: Window) -> str:
    return "; ".join(window.problems() or [])


def _load(pid: int) -> float:
    since, before = time.monotonic(), _ticks(pid)
    until("it is watched", lambda: time.monotonic() > since + WATCHED_SECONDS)
    seconds = (_ticks(pid) - before) / os.sysconf("SC_CLK_TCK")
    return seconds / (time.monotonic() - since)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
