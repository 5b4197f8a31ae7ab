"""Messages between driver and tasks, and files that bring rows to the driver."""

import hashlib
import pickle
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from partition.records import Offsets, Partition, Position
from service.pipeline.build import PipelinePolicy
from service.pipeline.trees import OutcomeCounters
from sinks.storage import Storage
from topology.errors import SinkFailed
from topology.monitoring import RecentFailure
from topology.sink import Batch, Piece, Staged, Stager
from transactions.transaction import RangeRead

EVERY_ROW = -1
"""Stands for a row's index: no row of the record is staged."""

Reasons = Mapping[int, str]
"""Why rows of a record are refused, by their indices among its rows in a sink, or EVERY_ROW."""


@dataclass(frozen=True, slots=True)
class TaskRange:
    """Offsets of one partition that a task processes, from `position` to before `end`."""

    partition: Partition
    position: Position
    end: int
    skips: frozenset[str] = frozenset()
    """Sinks, by step, that have these rows already: none is staged for them."""
    refused: Mapping[int, Mapping[str, Reasons]] = field(default_factory=dict)
    """By offset: the sinks that refused rows of this record in an earlier attempt."""
    leader_epoch: int | None = None  # no record of it had a later one when it was planned, or read
    patience: int = 1  # multiplies the seconds for which nothing may be heard of it


@dataclass(frozen=True, slots=True)
class TaskSettings:
    pipeline: str
    target: str  # "module:topology", imported on the executor
    paths: tuple[str, ...]  # further folders of modules; they come last
    kafka: Mapping[str, Any] = field(repr=False)  # librdkafka properties, with secrets
    storage: Storage = field(repr=False)
    policy: PipelinePolicy
    limits: InFlightLimits
    retries: RetryPolicy
    fetch_records: int
    chunk_records: int
    references: Mapping[str, str] = field(default_factory=dict)
    """By name: an Arrow file with the rows of a reference table, where executors reach it."""
    log_level: str = "warning"


@dataclass(frozen=True, slots=True)
class Task:
    settings: TaskSettings = field(repr=False)  # long, and the same for all tasks
    ranges: tuple[TaskRange, ...]
    stagers: Mapping[str, Stager]
    patience: int = 1  # multiplies the `job_deadline_seconds` of its job


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Every record of the ranges is done: its rows staged, or filtered, or its letter durable."""

    ranges: tuple[RangeRead, ...]
    staged: Mapping[str, tuple[Staged, ...]]  # by sink step, in order
    counters: OutcomeCounters
    retried: int
    dead_letters_refused: int = 0
    recent_failures: tuple[RecentFailure, ...] = ()  # by the executor's clock


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """An error of a task that another attempt of Spark's cannot heal.

    With a partition: its log lacks the range; the others of the task can go on without it.
    """

    error: str
    error_class: str
    partition: Partition | None = None
    diverged_at: int | None = None  # where the partition's log was cut off and written anew
    silent: tuple[Partition, ...] = ()
    """Nothing was heard of these: they may be read later, and the others of the group now."""


def encode(value: Task | TaskDone | TaskFailed) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> Any:
    """Decode what `encode` returned. Only for bytes of our own executors and driver."""
    return pickle.loads(data)  # noqa: S301


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file with a batch's rows: the only part of what a RowFileStager stages.

    The digest comes to the driver over Spark's own connection: whoever can write the folder cannot
    change it.
    """

    path: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class RowFileStager:
    """A `Stager` that writes each batch to a file in a local folder that tasks and driver share.

    Rows are pickled, so their classes must be importable at both ends.
    """

    folder: str

    def stage(self, batch: Batch) -> Staged:
        """Write the rows; every one fits. Raises OSError, SinkFailed if one cannot be pickled."""
        if batch.offsets is None:
            raise ValueError(f"batch {batch.sequence} does not tell of which records its rows are")
        pieces = [_packed(piece) for piece in batch.pieces]
        try:
            data = pickle.dumps((pieces, batch.offsets), protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            message = f"cannot pickle rows on their way to the driver: {error}"
            raise SinkFailed(message) from error
        path = Path(self.folder) / f"{uuid.uuid4().hex}.rows"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data)
        return Staged(batch.shares, batch.num_rows, (RowFile(str(path), digest_of(data)),))

    def discard(self, staged: Staged) -> None:
        for part in staged.parts:
            Path(part.path).unlink(missing_ok=True)


class RowFileChanged(OSError):
    """A file is not as its task wrote it."""


def digest_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def read_rows(staged: Staged) -> Iterator[tuple[str, list[Piece], Offsets]]:
    """Read a RowFileStager's file: by share its line, its rows, and the offsets of their records.

    Raises OSError: RowFileChanged before a file is unpickled that no task of ours wrote.
    """
    (part,) = staged.parts
    with Path(part.path).open("rb") as file:
        data = file.read()
    if digest_of(data) != part.digest:
        raise RowFileChanged(f"{part.path} is not as its task wrote it")
    packed, offsets = pickle.loads(data)  # noqa: S301 - a task of ours wrote it
    rest = map(_unpacked, packed)
    start = 0
    for share in staged.shares:
        pieces: list[Piece] = []
        end = start
        while end < start + share.num_rows:  # no piece has rows of two shares
            pieces.append(next(rest))
            end += len(pieces[-1])
        yield share.line, pieces, offsets[start:end]
        start = end


def _packed(piece: Piece) -> Any:
    """Turn columns into an Arrow stream: a pickled slice would take its whole parent along."""
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
