"""Rows that come to the driver by files, for tables of which only the driver stages.

Which rows a record makes, and which of them a table refuses, the seed decides once and for all.
"""

import io
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from partition.records import record_ids_of
from service.spark_engine import range_buffer, task
from service.spark_engine.staging import TaskSink, sinks_of
from service.spark_engine.task import RowFileStager
from tests.simulation.kafka import SimRecord
from tests.simulation.mutants import put
from topology.sink import Staged


class SpooledRow(NamedTuple):
    """A row on its way, and the run of a range that made it."""

    run: int
    table: str
    offset: int
    place: int  # among the rows of its record
    fits: bool


def rows_of(run, record, table, refuses):
    """The rows that a record makes for a table; of about one in `refuses` the last does not fit."""
    number = ord(table[-1])
    count = (record.offset + len(record) + number) % 3
    mixed = 31 * record.offset + 7 * len(record) + 13 * record.epoch + number
    unfit = count - 1 if mixed % refuses == 0 else count
    return [SpooledRow(run, table, record.offset, n, n != unfit) for n in range(count)]


def fits(record, table, refuses):
    return all(row.fits for row in rows_of(0, record, table, refuses))


@dataclass(slots=True)
class SpooledTask:
    """What a task has spooled, by sink, and the rows that it had letters sent of, by table."""

    staged: dict[str, tuple[Staged, ...]] = field(default_factory=dict)
    letters: list[tuple[SimRecord, str]] = field(default_factory=list)
    sinks: list[TaskSink] = field(default_factory=list)

    def discard(self):
        for sink in self.sinks:
            sink.discard()


class SpooledRun(NamedTuple):
    """Of a range, what a task knows to spool."""

    number: int
    records: Sequence[SimRecord]  # that come to rows


def spool_all(task, runs, refuses, rng):
    """Spool the rows of a task's ranges as the task's own sinks do, in one batch or in two."""
    made = SpooledTask()
    steps = [SimpleNamespace(name=name) for name in task.stagers]
    for name, sink in sinks_of(task, steps).items():
        if isinstance(task.stagers[name], RowFileStager):
            made.sinks.append(sink)
            by_record = {}
            for place, run in enumerate(runs):
                for record in run.records:
                    rows = list(rows_of(run.number, record, sink.step.name, refuses))
                    record_ids = record_ids_of(place, np.full(len(rows), record.offset, np.int64))
                    sink.add(rows, record_ids)
                    by_record |= dict.fromkeys(record_ids.tolist(), record)
            ends = [each.end for each in task.ranges]
            cuts = [rng.randrange(e.position.offset, e.end + 1) for e in task.ranges]
            for those in (cuts, ends):
                found = sink.stage(those, task.ranges)
                made.letters += [(by_record[record_id], sink.step.name) for record_id in found]
            made.staged[name] = tuple(sink.staged)
    return made


class SimFiles:
    """The files that a world's executors and drivers share, in memory: no disk is asked."""

    def __init__(self):
        self.held = {}  # by path

    def path(self, name):
        return _Path(self, name)

    def rmtree(self, folder, *, ignore_errors):
        assert ignore_errors
        for name in [name for name in self.held if name.startswith(f"{folder}/")]:
            del self.held[name]

    def lose(self, which):
        """A file is gone, though somebody may want it; False: there was none."""
        if not self.held:
            return False
        del self.held[sorted(self.held)[which % len(self.held)]]
        return True


@contextmanager
def files_in_memory():
    files = SimFiles()
    with put(task, "Path", files.path), put(range_buffer, "shutil", files):
        yield files


class _Path:
    """As much of a path as the spool asks for."""

    def __init__(self, files, name):
        self._files = files
        self._name = name

    def __str__(self):
        return self._name

    def __truediv__(self, name):
        return _Path(self._files, f"{self._name}/{name}")

    @property
    def parent(self):
        return _Path(self._files, self._name.rpartition("/")[0])

    def mkdir(self, *, mode, parents, exist_ok):
        pass

    def open(self, mode):
        if mode == "wb":
            return _Written(self._files.held, self._name)
        if self._name not in self._files.held:
            raise FileNotFoundError(self._name)
        return io.BytesIO(self._files.held[self._name])

    def unlink(self, *, missing_ok=False):
        if self._files.held.pop(self._name, None) is None and not missing_ok:
            raise FileNotFoundError(self._name)


class _Written(io.BytesIO):
    """A file that is there when it is closed."""

    def __init__(self, held, name):
        super().__init__()
        self._held = held
        self._name = name

    def close(self):
        if not self.closed:
            self._held[self._name] = self.getvalue()
        super().close()
