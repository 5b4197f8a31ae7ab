"""What becomes of each partition when a pipeline takes over where Storm stopped. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

from partition.errors import StoreError, StormUnreadable
from partition.interfaces import Log, StoredOffset
from partition.records import Partition, Position
from partition.storm_offsets import StormOffset

Outcome: TypeAlias = Literal[
    "imported", "to_import", "stored_already", "no_storm_node", "refused", "failed"
]


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about one partition."""

    partition: Partition
    storm: StormOffset | StormUnreadable | None  # None: Storm holds no offset for it
    log: Log | None  # None: the topic has no such partition
    stored: StoredOffset | StoreError | None  # None: nothing; an error: not to be read


@dataclass(frozen=True, slots=True)
class Row:
    """One partition, what becomes of it, and why."""

    partition: Partition
    outcome: Outcome
    note: str
    storm: StormOffset | None = None
    log: Log | None = None
    stored_offset: int | None = None

    @property
    def lag(self) -> int | None:
        """Offsets between Storm's and the log's end; None where one is not known."""
        if self.storm is None or self.log is None:
            return None
        return self.log.end - self.storm.offset

    @property
    def position(self) -> Position:
        """What is to be stored. Only where there is something to import."""
        if self.storm is None or self.log is None:
            raise AssertionError(self.outcome)
        return Position(self.storm.offset, None, self.log.topic_id)

    def become(self, outcome: Outcome, note: str | None = None) -> Self:
        """The row after an attempt."""
        return replace(self, outcome=outcome, note=self.note if note is None else note)

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        return {
            "outcome": self.outcome,
            "note": self.note,
            "storm_offset": self.storm.offset if self.storm else None,
            "storm_node": self.storm.path if self.storm else None,
            "storm_version": self.storm.version if self.storm else None,
            "log_start": self.log.start if self.log else None,
            "log_end": self.log.end if self.log else None,
            "lag": self.lag,
            "stored_offset": self.stored_offset,
        }


def judge(known: Known, topology_id: str, *, allow_loss: bool) -> Row:
    """Decide about one partition. `topology_id` is the one that our offsets are stored under.

    An offset outside [log start, log end] is refused. `allow_loss` lets one below the start
    through as it stands: the run then applies `on_data_loss`, which counts what is gone.
    """
    storm = known.storm if isinstance(known.storm, StormOffset) else None
    stored = known.stored if isinstance(known.stored, StoredOffset) else None
    outcome, note = _verdict(known, topology_id, allow_loss=allow_loss)
    return Row(known.partition, outcome, note, storm, known.log, stored.offset if stored else None)


def refused(rows: Iterable[Row]) -> list[Row]:
    """The rows that keep an import from being complete."""
    return [row for row in rows if row.outcome in ("refused", "failed")]


def _verdict(known: Known, topology_id: str, *, allow_loss: bool) -> tuple[Outcome, str]:
    storm, log = known.storm, known.log
    if isinstance(storm, StormUnreadable):
        return "refused", str(storm)
    if storm is None:
        return "no_storm_node", f"Storm holds no offset for it; {_without_storm(known.stored)}"
    if log is None:
        return "refused", f"{storm.path} is of a partition that the topic does not have"
    if known.stored is not None:
        trouble = _against_stored(storm, known.stored, topology_id)
        return ("stored_already", storm.note) if trouble is None else ("refused", trouble)
    return _against_log(storm, log, allow_loss=allow_loss)


def _without_storm(stored: StoredOffset | StoreError | None) -> str:
    if stored is None:  # where others of its topic are stored, it counts as a new partition
        return "a run begins it at the log's start, or by start_from if none of its topic is stored"
    if isinstance(stored, StoreError):
        return str(stored)
    return f"a run goes on at the stored offset {stored.offset}"


def _against_stored(
    storm: StormOffset, stored: StoredOffset | StoreError, topology_id: str
) -> str | None:
    """What is wrong with the offset that is stored already; None if it is the same."""
    if isinstance(stored, StoreError):
        return str(stored)
    if stored.topology_id != topology_id:
        return f"topology '{stored.topology_id}' has stored offset {stored.offset} here"
    if stored.offset != storm.offset:
        return f"this pipeline has stored offset {stored.offset} already"
    return None


def _against_log(storm: StormOffset, log: Log, *, allow_loss: bool) -> tuple[Outcome, str]:
    if storm.offset > log.end:
        return "refused", (
            f"offset {storm.offset} of {storm.path} is {storm.offset - log.end} above the log's "
            f"end {log.end}: another cluster's, or the topic was made anew or cut off"
        )
    if storm.offset >= log.start:
        return "to_import", storm.note
    gone = (
        f"offset {storm.offset} of {storm.path} is below the log's start {log.start}: "
        f"{log.start - storm.offset} offsets are deleted"
    )
    if allow_loss:
        return "to_import", f"{gone}; on_data_loss decides when it is run"
    return "refused", f"{gone}; --allow-loss imports it, and on_data_loss then decides"
