"""Which offsets an operator may move, and where to: what is asked, read, and judged. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

import typer

from partition.errors import StoreCorrupt, StoreError
from partition.interfaces import AtOffset, AtTimestamp, Log, StartFrom, StoredOffset, Topic
from partition.records import Partition, Position
from partition.replicas.plan import Control, Member, by_topic

Outcome: TypeAlias = Literal["moved", "to_move", "refused", "failed"]

_PLACE = "TOPIC:PARTITION=OFFSET"
_PLACE_FORM = re.compile(r"(.+):(\d{1,9})=(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about one partition, and where it is to go."""

    partition: Partition
    goal: StartFrom
    log: Log
    stored: StoredOffset | StoreError | None  # None: nothing; an error: not to be read


@dataclass(frozen=True, slots=True)
class Row:
    """One partition, what becomes of it, and why."""

    partition: Partition
    outcome: Outcome
    note: str
    log: Log
    to: int
    before: int | None  # what is stored; None: nothing is, or it cannot be read

    @property
    def position(self) -> Position:
        """What is to be stored. Of no record's epoch: the leader's tells of a later cut, too."""
        return Position(self.to, self.log.leader_epoch, self.log.topic_id)

    def become(self, outcome: Outcome, note: str = "", *, before: int | None = None) -> Self:
        """The row after an attempt, with what was stored when it was made."""
        return replace(
            self, outcome=outcome, note=note, before=self.before if before is None else before
        )

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        return {
            "outcome": self.outcome,
            "note": self.note,
            "from": self.before,
            "to": self.to,
            "log_start": self.log.start,
            "log_end": self.log.end,
        }


def parse_places(texts: Iterable[str]) -> dict[Partition, StartFrom]:
    """Read TOPIC:PARTITION=OFFSET. Raises typer.BadParameter."""
    found: dict[Partition, StartFrom] = {}
    for text in texts:
        match = _PLACE_FORM.fullmatch(text)
        if match is None:
            message = f"'{text}': {_PLACE} is needed, such as orders:0=84210"
            raise typer.BadParameter(message, param_hint=_PLACE)
        partition = Partition(match[1], int(match[2]))
        if partition in found:
            raise typer.BadParameter(f"{partition} is named twice", param_hint=_PLACE)
        found[partition] = AtOffset(int(match[3]))
    return found


def parse_to(text: str) -> StartFrom:
    """Read where to reset to. Raises typer.BadParameter."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if re.fullmatch(r"\d{1,18}", text):
        return AtTimestamp(int(text))
    message = f"'{text}': allowed: earliest, latest, or milliseconds since 1970 (UTC)"
    raise typer.BadParameter(message, param_hint="--to")


def check_are_read(asked: Collection[Partition], topics: Mapping[str, Topic]) -> None:
    """Raise typer.BadParameter, naming those that there are, unless all of them are read."""
    there = _partitions(topics.values())
    for partition in asked:
        if partition not in there:
            message = f"the topology does not read {partition}, but {_named(there)}"
            raise typer.BadParameter(message, param_hint=_PLACE)


def chosen(
    topics: Mapping[str, Topic], topic: str | None, numbers: Sequence[int]
) -> list[Partition]:
    """The partitions that are meant: of one topic or all, these numbers or all.

    Raises typer.BadParameter, naming those that are allowed.
    """
    if topic is not None and topic not in topics:
        message = f"the topology does not read '{topic}', but {', '.join(sorted(topics))}"
        raise typer.BadParameter(message, param_hint="--topic")
    if numbers and topic is None and len(topics) > 1:
        message = f"of which topic? --topic is needed: {', '.join(sorted(topics))}"
        raise typer.BadParameter(message, param_hint="--partition")
    there = _partitions(each for name, each in topics.items() if topic in (None, name))
    if not numbers:
        return sorted(there)
    missing = sorted(set(numbers) - {each.number for each in there})
    if missing:
        message = f"there is no partition {missing[0]}, but {_named(there)}"
        raise typer.BadParameter(message, param_hint="--partition")
    return sorted(each for each in there if each.number in numbers)


def consumed(members: Sequence[Member], control: Control) -> str | None:
    """Say why nothing can be moved while these replicas are registered; None if it can.

    Paused, a replica releases one that was moved, and opens it anew.
    """
    if members and control.paused is None:
        names = ", ".join(each.name for each in members)
        return (
            f"the partitions are being consumed by {names}: pause the pipeline first "
            "(headrace pause), or stop them"
        )
    return None


def judge(known: Known, pipeline: str, *, exactly_once: bool) -> Row:
    """Decide about one partition. An offset outside [log start, log end] is always refused."""
    log, stored = known.log, known.stored
    to = _offset(known.goal, log)
    before = stored.offset if isinstance(stored, StoredOffset) else None
    row = Row(known.partition, "to_move", "", log, to, before)
    if not log.start <= to <= log.end:
        return row.become("refused", f"the log holds {log.start} to {log.end}, not offset {to}")
    if isinstance(stored, StoreCorrupt) and not exactly_once:
        return row.become("to_move", f"{stored}; it is replaced")
    if isinstance(stored, StoreError):
        return row.become("refused", str(stored))
    if stored is None:
        return row.become("to_move", "nothing is stored; it is begun there")
    if stored.topology_id != pipeline:
        found = f"topology '{stored.topology_id}' stored its offset, not '{pipeline}'"
        return row.become("refused", f"{found}; use another [pipeline] name")
    trouble = still_open(stored)
    return row if trouble is None else row.become("refused", trouble)


def still_open(stored: StoredOffset) -> str | None:
    """Say what is open and would be lost by a move; None if nothing is."""
    opened = stored.transactions.open if stored.transactions else ()
    if not opened:
        return None
    txids = ", ".join(str(each.txid) for each in opened)
    return f"transactions are open ({txids}): let a replica finish them, then move it"


def refused(rows: Iterable[Row]) -> list[Row]:
    """The rows that keep a move from being complete."""
    return [row for row in rows if row.outcome in ("refused", "failed")]


def _offset(goal: StartFrom, log: Log) -> int:
    if isinstance(goal, AtOffset):
        return goal.offset
    if isinstance(goal, AtTimestamp):
        return log.end if log.at_timestamp is None else log.at_timestamp
    return log.start if goal == "earliest" else log.end


def _partitions(topics: Iterable[Topic]) -> set[Partition]:
    return {Partition(topic.name, number) for topic in topics for number in topic.partitions}


def _named(partitions: Collection[Partition]) -> str:
    found = sorted(by_topic(partitions).items())
    return ", ".join(f"{topic} {numbers}" for topic, numbers in found) or "none"
