"""Ranges on their way to a task and back, and rows that come to the driver by files."""

import hashlib
import pickle
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from partition.records import Offsets, Partition, Position
from partition.retry import RetryPolicy
from service.pipeline.failures import ScreenPolicy
from service.pipeline.trees import OutcomeCounters
from sinks.storage import Storage
from topology.errors import SinkFailed
from topology.sink import Batch, Piece, Staged, Stager
from transactions.transaction import RangeRead

EVERY_ROW = -1
"""In place of a row's index: no row of the record is wanted."""

Reasons = Mapping[int, str]
"""Why rows of a record are refused, by their indices among its rows in a sink, or EVERY_ROW."""


def reason_of(reasons: Reasons, row: int) -> str | None:
    """Return the reason why a row of a record is refused, or None."""
    return reasons.get(row, reasons.get(EVERY_ROW))


@dataclass(frozen=True, slots=True)
class TaskRange:
    """Offsets of one partition that a task processes, from `position` to before `end`."""

    partition: Partition
    position: Position
    end: int
    skips: frozenset[str] = frozenset()
    """Sinks, by step, that have these rows already: none is staged for them."""
    refused: Mapping[int, Mapping[str, Reasons]] = field(default_factory=dict)
    """By offset: the sinks that did not take all rows of this record in a try before."""
    leader_epoch: int | None = None  # no record of it had a later one when it was planned, or read
    patience: int = 1  # nothing may be heard of it for so many times as long as at first


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What a task needs of the configuration."""

    pipeline: str
    target: str  # "module:topology", imported on the executor
    paths: tuple[str, ...]  # where modules may lie besides; they come last
    kafka: Mapping[str, Any] = field(repr=False)  # librdkafka properties, secrets too
    storage: Storage = field(repr=False)
    retries: RetryPolicy
    screen: ScreenPolicy
    message_timeout_seconds: float
    fetch_records: int
    chunk_records: int
    max_pending: int
    max_pending_bytes: int
    references: Mapping[str, str] = field(default_factory=dict)
    """By name: an Arrow file with the rows of a reference table, where executors reach it."""
    log_level: str = "warning"


@dataclass(frozen=True, slots=True)
class Task:
    """Ranges that are processed together, and what stages the rows of each sink step."""

    settings: TaskSettings = field(repr=False)  # long, and the same for all tasks
    number: int  # of the group
    ranges: tuple[TaskRange, ...]
    stagers: Mapping[str, Stager]
    patience: int = 1  # its job has so many times `job_deadline_seconds`


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Every record of the ranges is done: its rows staged, or filtered, or its letter durable.

    `staged` has, by sink step, what was staged, in order.
    """

    ranges: tuple[RangeRead, ...]
    staged: Mapping[str, tuple[Staged, ...]]
    counters: OutcomeCounters
    retried: int
    dead_letters_refused: int = 0


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """Why the ranges cannot be processed, and trying again will not help.

    With a partition: its log does not hold the range; the others of the task could go on.
    """

    error: str
    error_class: str
    partition: Partition | None = None
    diverged_at: int | None = None  # where the partition's log was cut off and written anew
    silent: tuple[Partition, ...] = ()
    """Of these nothing was heard: they may be read later, and the others of the group now."""


def encode(value: Task | TaskDone | TaskFailed) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> Any:
    """Decode what `encode` was given. Only for bytes of our own executors and driver."""
    return pickle.loads(data)  # noqa: S301


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file with a group's rows; it is the only part of what a SpoolStager stages.

    The digest comes to the driver with the task's result, over Spark's own connection: whoever
    can write the folder cannot change it.
    """

    path: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class SpoolStager:
    """A `Stager` that writes each group into a file of its own in a folder.

    The folder is a local path that tasks and driver share. Rows are pickled, so their classes
    must be importable at both ends.
    """

    folder: str

    def stage(self, group: Batch) -> Staged:
        """Write the rows; every one fits. Raises OSError, SinkFailed if one cannot be pickled."""
        if group.offsets is None:
            raise ValueError(f"group {group.sequence} does not tell of which records its rows are")
        pieces = [_packed(piece) for piece in group.pieces]
        try:
            data = pickle.dumps((pieces, group.offsets), protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            message = f"rows cannot be pickled on their way to the driver: {error}"
            raise SinkFailed(message) from error
        path = Path(self.folder) / f"{uuid.uuid4().hex}.rows"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data)
        part = SpoolFile(str(path), digest_of(data))
        return Staged(group.shares, group.num_rows, (part,))

    def discard(self, staged: Staged) -> None:
        """Remove the file, if it is there."""
        for part in staged.parts:
            Path(part.path).unlink(missing_ok=True)


class SpoolChanged(OSError):
    """A file is not as its task wrote it."""


def digest_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def read_spool(staged: Staged) -> tuple[list[Piece], Offsets]:
    """Read what a SpoolStager has staged: rows in their order, and the offsets of their records.

    Raises OSError: SpoolChanged before a file is unpickled that no task of ours has written.
    """
    (part,) = staged.parts
    with Path(part.path).open("rb") as file:
        data = file.read()
    if digest_of(data) != part.digest:
        raise SpoolChanged(f"{part.path} is not as its task wrote it")
    packed, offsets = pickle.loads(data)  # noqa: S301 - a task of ours wrote it
    return [_unpacked(each) for each in packed], offsets


def read_lines(staged: Staged) -> dict[str, tuple[list[Piece], Offsets]]:
    """The same by line; if a line has several shares, one after the other."""
    pieces, offsets = read_spool(staged)
    by_line: defaultdict[str, tuple[list[Piece], list[Offsets]]] = defaultdict(lambda: ([], []))
    rest = iter(pieces)
    start = 0
    for share in staged.shares:
        its_pieces, its_offsets = by_line[share.line]
        end = start + share.num_rows
        its_offsets.append(offsets[start:end])
        while start < end:  # no piece has rows of two shares
            piece = next(rest)
            its_pieces.append(piece)
            start += len(piece)
    return {line: (found, np.concatenate(of)) for line, (found, of) in by_line.items()}


def _packed(piece: Piece) -> Any:
    """Columns as an Arrow stream: if pickled, a slice takes its whole parent along."""
    if not isinstance(piece, pa.RecordBatch):
        return piece
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.schema) as writer:
        writer.write_batch(piece)
    return sink.getvalue().to_pybytes()


def _unpacked(packed: Any) -> Piece:
    if not isinstance(packed, bytes):
        rows: list[Any] = packed
        return rows
    with pa.ipc.open_stream(packed) as reader:
        return reader.read_next_batch()
