"""O03: a hundred scrapes a second, and clients that never finish asking, do not touch a run."""

import contextlib
import http.client
import socket
import threading
import time
from typing import Self

import pytest

from service.devservers.process import free_ports
from tests.acceptance.trial import Trial, places, rows_of
from tests.support.patience import seconds

pytestmark = pytest.mark.faults

COUNTS = (10_000, 10_000)
PACE = 2_000.0  # rows a second, by the sink
SCRAPERS, SCRAPES_A_SECOND = 10, 100
SLOW_CLIENTS = 300
ANSWER_SECONDS = seconds(5.0)
SECONDS = 180.0


@pytest.fixture
def make_trial(kafka, zookeeper, tmp_path):
    trials: list[Trial] = []

    def make() -> Trial:
        folder = tmp_path / str(len(trials))
        folder.mkdir()
        trials.append(Trial(kafka, zookeeper, folder, topologies="tests.acceptance.troubled"))
        trials[-1].publish(*COUNTS)
        return trials[-1]

    yield make
    for trial in trials:
        trial.end()


class Crowd:
    """Scrapers, and slow clients that drip one byte after the other into their requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self.answers: list[tuple[int, float]] = []  # status and seconds; 0: none
        self._threads = [
            *(threading.Thread(target=self._scrape) for _ in range(SCRAPERS)),
            threading.Thread(target=self._drip),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(seconds(30))

    def _scrape(self) -> None:
        while not self._ended.wait(SCRAPERS / SCRAPES_A_SECOND):
            began = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
            status = 0
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                status = answer.status if b"headrace_service_written" in answer.read() else 0
            connection.close()
            self.answers.append((status, time.monotonic() - began))

    def _drip(self) -> None:
        slow: list[socket.socket] = []
        while not self._ended.wait(0.2):
            while len(slow) < SLOW_CLIENTS and not self._ended.is_set():
                try:
                    client = socket.create_connection(("127.0.0.1", self._port), timeout=1)
                    client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
                except OSError:  # it is not there, or there are too many
                    break
                slow.append(client)
            for client in list(slow):
                try:
                    client.sendall(b"x")
                except OSError:  # cut off
                    client.close()
                    slow.remove(client)
        for client in slow:
            client.close()


def seconds_of(trial: Trial, port: int) -> float:
    """Run to the end; how long it took from the first row to the last."""
    run = trial.start(
        "paced", "--until-caught-up", config={"http": {"port": port}},
        environment={"TRIAL_PACE": str(PACE)},
    )  # fmt: skip
    trial.wait_for(run, 1)
    began = time.monotonic()
    trial.wait_for(run, sum(COUNTS))
    seconds = time.monotonic() - began
    assert run.wait(SECONDS) == 0, run.tail()
    assert trial.rows() == rows_of(places(*COUNTS))
    assert trial.stored() == dict(enumerate(COUNTS))
    assert "Traceback" not in run.errors
    return seconds


def test_scrapes_and_slow_clients_do_not_hold_up_a_run(make_trial):
    alone = seconds_of(make_trial(), free_ports(1)[0])
    port = free_ports(1)[0]
    with Crowd(port) as crowd:
        crowded = seconds_of(make_trial(), port)
    answered = [seconds for status, seconds in crowd.answers if status == http.client.OK]
    print(  # noqa: T201
        f"{alone:.1f} s alone, {crowded:.1f} s in the crowd; {len(answered)} scrapes, "
        f"the slowest {max(answered):.2f} s"
    )
    assert crowded < 1.5 * alone
    assert len(answered) > crowded * SCRAPES_A_SECOND / 2
    assert max(answered) < ANSWER_SECONDS
