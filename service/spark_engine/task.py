"""What the driver asks of an executor, and what comes back. Pickled: both run the same code."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partition.records import Partition, Position
from partition.retry import RetryPolicy
from service.pipeline.failures import ScreenPolicy
from service.pipeline.trees import Tally
from sinks.storage import Storage
from topology.sink import Staged, Stager

EVERY_ROW = -1
"""In place of a row's index: no row of the record is wanted."""

Reasons = Mapping[int, str]
"""Why rows of a record are refused, by their indices among its rows in a sink, or EVERY_ROW."""


def reason_of(reasons: Reasons, row: int) -> str | None:
    """Why a row of a record is refused; None: it is not."""
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
class RangeRead:
    """What a range turned out to hold."""

    partition: Partition
    count: int
    digest: str  # see transactions.digest
    # No record of it has a later one. None: none has a later one than the range knows of, or it is
    # not known.
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Every record of the ranges is done: its rows staged, or filtered, or its letter durable.

    `staged` has, by sink step, what was staged, in order.
    """

    ranges: tuple[RangeRead, ...]
    staged: Mapping[str, tuple[Staged, ...]]
    tally: Tally
    retried: int
    letters_refused: int = 0


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
    """Bytes for the way to an executor and back."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> Any:
    """What `encode` was given. Only for bytes of our own executors and driver."""
    return pickle.loads(data)  # noqa: S301
