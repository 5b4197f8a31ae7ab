"""S04: a sink ten times slower holds its records back; what waits for it does not pile up."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from service.devservers.process import free_ports
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance.harness import Run
from tests.acceptance.trial import Trial, places, rows_of
from tests.support.patience import seconds, until

pytestmark = pytest.mark.faults

COUNTS = (10_000, 10_000)
PADDING = b" " + b"x" * 4_000  # 80 MB in all
FAST = 10_000.0  # rows a second
SLOW = FAST / 10
WINDOW_BYTES = 8 * 1024 * 1024  # of a partition
FETCH_BYTES = 4_000 * len(PADDING)  # at most so many records are fetched at once
MEGABYTE = 1024 * 1024
SECONDS = 180.0


@pytest.fixture
def trial(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(kafka, zookeeper, tmp_path, topologies="tests.acceptance.troubled")
    (trial.folder / "trouble").touch()
    kafka.create_topic(trial.name, len(COUNTS))
    producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True})
    for number, count in enumerate(COUNTS):
        for offset in range(count):
            producer.produce(trial.name, b"%d:%d%b" % (number, offset, PADDING), partition=number)
            producer.poll(0)
    assert producer.flush(seconds(60)) == 0
    yield trial
    trial.end()


class Watched:
    """A run at that pace, looked at from outside."""

    def __init__(self, trial: Trial, rows_a_second: float) -> None:
        self.port = free_ports(1)[0]
        self.run: Run = trial.start(
            "paced",
            "--until-caught-up",
            config={
                "pipeline": {
                    "max_pending_bytes": WINDOW_BYTES,
                    "chunk_records": 250,  # three batches fit into the window
                    "commit_interval_seconds": 0.1,
                },
                "http": {"port": self.port},
            },
            environment={"TRIAL_PACE": str(rows_a_second)},
        )
        self.trial = trial
        self.resident: list[int] = []
        self.held_back = 0
        self.pending_bytes = 0.0

    def until(self, rows: int) -> None:
        """Look ten times a second, until so many rows are written."""

        def look() -> bool:
            self._look()
            return self.trial.written(self.run) >= rows or not self.run.alive

        until(f"{rows} rows", look, SECONDS, self.run.tail)

    def _look(self) -> None:
        try:
            status = Path(f"/proc/{self.run.pid}/status").read_text()
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                text = answer.read().decode()
        except OSError:  # not yet, or not any more
            return
        if found := re.search(r"VmRSS:\s+(\d+) kB", status):
            self.resident.append(int(found[1]) * 1024)
        self.held_back += "headrace_service_held_back_state 1.0" in text
        for line in re.findall(
            r"^headrace_partition_pending_bytes\{.*\} (\S+)$", text, re.MULTILINE
        ):
            self.pending_bytes = max(self.pending_bytes, float(line))


def test_slow_sink_holds_sources_back_with_flat_memory(trial: Trial) -> None:
    """Promise 10."""
    total = sum(COUNTS)
    slow = Watched(trial, SLOW)
    slow.until(total // 5)
    early = max(slow.resident)
    left_bytes = (total - total // 5) * len(PADDING)  # so much more if all of it were fetched
    slow.until(total)
    assert slow.run.wait(SECONDS) == 0, slow.run.tail()
    late = max(slow.resident)
    print(f"{early / MEGABYTE:.0f} MB after a fifth, {late / MEGABYTE:.0f} MB at most")  # noqa: T201
    assert trial.rows() == rows_of(places(*COUNTS))
    assert trial.stored() == dict(enumerate(COUNTS))
    assert slow.held_back > len(slow.resident) / 2
    assert 0 < slow.pending_bytes <= WINDOW_BYTES + FETCH_BYTES + MEGABYTE
    assert late - early < left_bytes / 3
