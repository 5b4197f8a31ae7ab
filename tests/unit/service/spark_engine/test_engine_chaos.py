"""The spark engine in memory, where everything fails now and then: rows are right all the same."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.sinks import MemoryDeadLetters
from partition.errors import PartitionError
from partition.records import Partition
from service.spark_engine.task import Task
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes
from tests.support.patience import Limit
from tests.support.spark_engine import ApartSink, Driving, HereExecutors, HereSink
from topology.errors import SinkFailed
from transactions import groups
from transactions.groups import RangePolicy

PARTITIONS = 3
PATIENCE_SECONDS = 60.0


class Crash(Exception):
    """A process ends here."""


class Executors(HereExecutors):
    """Loses tries before they run, or their results."""

    def __init__(self, rng: random.Random, *args: Any) -> None:
        super().__init__(*args)
        self._rng = rng

    def run(self, name: str, tasks: Sequence[Task]) -> Any:
        time.sleep(self._rng.random() * 0.01)
        if self._rng.random() < 0.15:
            raise OSError("an executor was lost")
        results = super().run(name, tasks)
        if self._rng.random() < 0.1:
            raise OSError("what it has done was lost")
        return results


class Chaos:
    """Processes that start, crash and overtake one another, on the same servers and sinks."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.log = FaultyLog({"t": PARTITIONS})
        self.nodes = FaultyNodes()
        self.letters = MemoryDeadLetters()
        self.apart, self.here = ApartSink(), HereSink()
        self.opaque = self.rng.random() < 0.3
        self.sent: list[str] = []
        self.living: list[Driving] = []

    def send(self) -> None:
        """Append some records; the rows of some are refused by one of the sinks."""
        for _ in range(self.rng.randint(1, 8)):
            value = f"{'unwanted' if self.rng.random() < 0.05 else 'good'}-{len(self.sent)}"
            if value.startswith("unwanted"):
                self.here.rejects.add(value)
            self.sent.append(value)
            partition = Partition("t", self.rng.randrange(PARTITIONS))
            self.log.append(partition, value.encode())

    def begin(self) -> None:
        """Start a process; it takes all partitions from those that are there."""
        drives = Driving(
            self.folder,
            sinks=[self.apart, self.here],
            log=self.log,
            nodes=self.nodes,
            letters=self.letters,
            ranges=RangePolicy(
                self.rng.choice([3, 7, 20]), 0.005, max_active=self.rng.choice([1, 2, 3])
            ),
            opaque=self.opaque,
            executors=lambda *args: Executors(self.rng, *args),
            at=self._at,
        )
        drives.reader.open()
        drives.engine.open()
        self.living.append(drives)

    def turn(self) -> None:
        """Let each process turn once; those that crash are gone."""
        for drives in list(self.living):
            try:
                drives.engine.step(fetch=self.rng.random() > 0.02)
            except (Crash, SinkFailed, PartitionError):
                self.end(drives)
        if self.rng.random() < 0.01 and len(self.living) < 3:
            self.begin()
        if self.rng.random() < 0.003:
            self.nodes.end_session()
        if not self.living:
            self.begin()

    def end(self, drives: Driving) -> None:
        """Let a process end, whatever it is at."""
        self.living.remove(drives)
        drives.engine.close(2.0)
        drives.reader.close()

    @property
    def is_done(self) -> bool:
        """Whether the newest process has stored the ends of all logs."""
        newest = self.living[-1]
        return all(newest.stored_at(p) == end for p, end in newest.log_ends.items())

    def _at(self, place: str) -> None:
        if self.rng.random() > 0.02:
            return
        if not place.startswith("sink"):
            raise Crash(place)
        if self.rng.random() < 0.5:
            raise SinkFailed(f"it cannot go on {place}")
        raise OSError(f"not now {place}")


@pytest.mark.parametrize("seed", range(8))
def test_every_row_is_there_once_whatever_fails(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promises 9 and 14."""
    monkeypatch.setattr(groups, "_FIRST_PAUSE_SECONDS", 0.005)
    monkeypatch.setattr(groups, "_LONGEST_PAUSE_SECONDS", 0.02)
    chaos = Chaos(tmp_path, seed)
    end = Limit(PATIENCE_SECONDS)
    while not (len(chaos.sent) >= 60 and chaos.living and chaos.is_done):
        assert not end.passed, f"it never ended: {chaos.living[-1].stored}"
        if len(chaos.sent) < 60 and chaos.rng.random() < 0.3:
            chaos.send()
        chaos.turn()
    for drives in list(chaos.living):
        chaos.end(drives)
    unwanted = {value for value in chaos.sent if value.startswith("unwanted")}
    assert Counter(chaos.apart.rows) == Counter(chaos.sent)
    assert Counter(chaos.here.rows) == Counter(v for v in chaos.sent if v not in unwanted)
    assert {(e.record.value or b"").decode() for e in chaos.letters.letters} == unwanted
