"""Rows that come to the driver by files, for tables of which only the driver stages.

Which rows a record makes, and which of them a table refuses, the seed decides once and for all.
"""

import io
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from service.spark_engine import handed, spool
from service.spark_engine.running import _refused
from service.spark_engine.spool import SpoolStager
from service.spark_engine.taking import TakingSink
from service.spark_engine.task import Task
from tests.simulation.kafka import SimRecord
from tests.simulation.mutants import put
from topology.sink import Batch, Piece, Share, Staged


class SpooledRow(NamedTuple):
    """A row on its way, and the run of a range that made it."""

    run: int
    table: str
    offset: int
    place: int  # among the rows of its record
    fits: bool


def rows_of(run: int, record: SimRecord, table: str, refuses: int) -> list[SpooledRow]:
    """The rows that a record makes for a table; of about one in `refuses` the last does not fit."""
    number = ord(table[-1])
    count = (record.offset + len(record) + number) % 3
    mixed = 31 * record.offset + 7 * len(record) + 13 * record.epoch + number
    unfit = count - 1 if mixed % refuses == 0 else count
    return [SpooledRow(run, table, record.offset, n, n != unfit) for n in range(count)]


def fits(record: SimRecord, table: str, refuses: int) -> bool:
    """Whether a table takes all that a record makes for it."""
    return all(row.fits for row in rows_of(0, record, table, refuses))


@dataclass(slots=True)
class SpooledTask:
    """What a task has spooled, by sink, and the rows that it had letters sent of, by table."""

    staged: dict[str, tuple[Staged, ...]] = field(default_factory=dict)
    letters: list[tuple[SimRecord, str]] = field(default_factory=list)
    sinks: list[TakingSink] = field(default_factory=list)

    def discard(self) -> None:
        """The task has failed."""
        for sink in self.sinks:
            sink.discard_all()


class SpooledRun(NamedTuple):
    """Of a range, what a task knows to spool."""

    number: int
    line: str
    skips: frozenset[str]
    records: Sequence[SimRecord]  # that come to rows


def spool_all(
    task: Task, runs: Sequence[SpooledRun], refuses: int, rng: random.Random
) -> SpooledTask:
    """Spool the rows of a task's ranges as the task's own sinks do, in one group or in two."""
    made = SpooledTask()
    refused = _refused(task)
    for name, stager in task.stagers.items():
        if isinstance(stager, SpoolStager):
            sink = TakingSink(name, stager, refused[name])
            made.sinks.append(sink)
            mine = [run for run in runs if name not in run.skips]
            cuts = [rng.randrange(len(run.records) + 1) for run in mine]
            firsts = [run.records[:cut] for run, cut in zip(mine, cuts, strict=True)]
            rests = [run.records[cut:] for run, cut in zip(mine, cuts, strict=True)]
            for parts in (firsts, rests):
                _spool(made, sink, task.number, mine, parts, refuses)
            made.staged[name] = tuple(sink.taken)
    return made


def _spool(
    made: SpooledTask,
    sink: TakingSink,
    number: int,
    runs: Sequence[SpooledRun],
    parts: Sequence[Sequence[SimRecord]],
    refuses: int,
) -> None:
    shares: list[Share] = []
    pieces: list[Piece] = []
    records: list[SimRecord] = []  # of each row
    for run, part in zip(runs, parts, strict=True):
        before = len(records)
        for record in part:
            rows = rows_of(run.number, record, sink.name, refuses)
            if rows:
                pieces.append(list(rows))
                records += [record] * len(rows)
        shares.append(Share(run.line, 1, 1, 1, 0, 1, "", len(records) - before))
    if not records:
        return
    offsets = np.array([record.offset for record in records], np.int64)
    staged = sink.stage(Batch(number, pieces, len(records), tuple(shares), offsets))
    sink.commit(staged)
    made.letters += [(records[place], sink.name) for place in staged.rejected]


class SimFiles:
    """The files that a world's executors and drivers share, in memory: no disk is asked."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}  # by path

    def path(self, name: str) -> "_Path":
        """In place of `pathlib.Path`."""
        return _Path(self, name)

    def rmtree(self, folder: str, *, ignore_errors: bool) -> None:
        """In place of `shutil.rmtree`."""
        assert ignore_errors
        for name in [name for name in self.held if name.startswith(f"{folder}/")]:
            del self.held[name]

    def lose(self, which: int) -> bool:
        """A file is gone, though somebody may want it; False: there was none."""
        if not self.held:
            return False
        del self.held[sorted(self.held)[which % len(self.held)]]
        return True


@contextmanager
def files_in_memory() -> Iterator[SimFiles]:
    """With the spool's files in memory."""
    files = SimFiles()
    with put(spool, "Path", files.path), put(handed, "shutil", files):
        yield files


class _Path:
    """As much of a path as the spool asks for."""

    def __init__(self, files: SimFiles, name: str) -> None:
        self._files = files
        self._name = name

    def __str__(self) -> str:
        return self._name

    def __truediv__(self, name: str) -> "_Path":
        return _Path(self._files, f"{self._name}/{name}")

    @property
    def parent(self) -> "_Path":
        return _Path(self._files, self._name.rpartition("/")[0])

    def mkdir(self, *, mode: int, parents: bool, exist_ok: bool) -> None:
        """Do nothing: a folder is there if a file is in it."""

    def open(self, mode: str) -> io.BytesIO:
        if mode == "wb":
            return _Written(self._files.held, self._name)
        if self._name not in self._files.held:
            raise FileNotFoundError(self._name)
        return io.BytesIO(self._files.held[self._name])

    def unlink(self, *, missing_ok: bool = False) -> None:
        if self._files.held.pop(self._name, None) is None and not missing_ok:
            raise FileNotFoundError(self._name)


class _Written(io.BytesIO):
    """A file that is there when it is closed."""

    def __init__(self, held: dict[str, bytes], name: str) -> None:
        super().__init__()
        self._held = held
        self._name = name

    def close(self) -> None:
        if not self.closed:
            self._held[self._name] = self.getvalue()
        super().close()
