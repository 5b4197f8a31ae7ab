"""`headrace offsets set` and `reset`: move the offsets at which partitions are read on.

Before a move everything is read and judged; then it is written. A move raises the epoch, so
whoever has the partition is fenced: a replica releases it, and opens it anew where it was moved to.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import structlog
import typer

from partition.errors import PartitionError, StoreCorrupt, StoreError, StoreMissing, TopicMissing
from partition.interfaces import AtOffset, AtTimestamp, Log, StartFrom, StoredOffset, Topic
from partition.records import Partition, Position
from partition.replicas.balance import Note, by_topic
from service.cli import common as cli
from service.cli.control import OffsetChange, ReplicaNodes, replica_nodes
from service.errors import ServiceError
from service.wiring import Parts

log = structlog.get_logger()
app = typer.Typer(
    help="Move committed offsets, or import those of a Storm topology.", no_args_is_help=True
)

Goals: TypeAlias = Mapping[Partition, StartFrom]
Choose: TypeAlias = Callable[[Mapping[str, Topic]], Goals]  # of the topics that are read

_PLACE = "TOPIC:PARTITION=OFFSET"
_PLACE_FORM = re.compile(r"(.+):(\d{1,9})=(\d{1,18})")


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition, what becomes of it, and why."""

    partition: Partition
    outcome: str  # "to_…" until it is written; "refused" or "failed" if it is not
    note: str

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return what is known of the partition."""


Row = TypeVar("Row", bound=OffsetRow)


def refused(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that keep a command from being complete."""
    return [row for row in rows if row.outcome in ("refused", "failed")]


def check_complete(rows: Sequence[OffsetRow], done: str) -> None:
    """Raise ServiceError if a row is refused or failed; `done` says what became of the others."""
    if bad := refused(rows):
        raise ServiceError(f"{len(bad)} of {len(rows)} partitions refused or failed; {done}")


def write_in_turn(rows: Iterable[Row], write: Callable[[Row], Row]) -> list[Row]:
    """Write the rows that are to be written, one after the other; the first that fails ends it."""
    written: list[Row] = []
    is_over = False
    for row in rows:
        result = row
        if row.outcome.startswith("to_") and not is_over:
            try:
                result = write(row)
            except PartitionError as error:
                result = replace(row, outcome="failed", note=cli.describe(error))
            is_over = result.outcome == "failed"
        written.append(result)
    return written


def show_rows(rows: Iterable[OffsetRow], names: Sequence[str], words: Mapping[str, str]) -> None:
    """Print the rows as a table with the numbers of these names; `words` tell of outcomes."""
    cells = []
    for row in rows:
        facts, outcome = row.as_json(), words.get(row.outcome, row.outcome)
        cells.append((str(row.partition), *(facts[name] for name in names), outcome))
    columns = (">" + name.replace("_", " ") for name in names)
    cli.answers().print(cli.table_of(("partition", *columns, "what happens"), cells))


@dataclass(frozen=True, slots=True)
class MoveRow(OffsetRow):
    log: Log
    to: int
    before: int | None  # what is stored; None: nothing is, or it cannot be read

    def as_json(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "note": self.note,
            "from": self.before,
            "to": self.to,
            "log_start": self.log.start,
            "log_end": self.log.end,
        }


@app.command("set")
def offsets_set(
    target: cli.Target,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC:PARTITION=OFFSET", help="Where to read on: orders:0=84210. Several may."
        ),
    ],
    why: cli.Why,
    config: cli.ConfigPath = None,
    *,
    dry_run: cli.DryRun = False,
    as_json: cli.Json = False,
) -> None:
    """Set the offsets at which partitions are read on, forward or back.

    Refused while replicas read them, unless they are paused. If one is refused none is moved.
    """
    asked = parse_places(places)

    def choose(topics: Mapping[str, Topic]) -> Goals:
        there = set(cli.partitions_of(topics.values()))
        for partition in asked:
            if partition not in there:
                message = f"the topology does not read {partition}, but {_named(there)}"
                raise typer.BadParameter(message, param_hint=_PLACE)
        return asked

    _move(target, config, choose, why, dry_run=dry_run, as_json=as_json)


@app.command("reset")
def offsets_reset(
    target: cli.Target,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="earliest, latest, or the first record from a time stamp on: "
            "milliseconds since 1970 (UTC).",
        ),
    ],
    why: cli.Why,
    config: cli.ConfigPath = None,
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this topic of the topology.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Only this partition; may be given several times."),
    ] = None,
    dry_run: cli.DryRun = False,
    as_json: cli.Json = False,
) -> None:
    """Set the offsets of all partitions, or of some, to the log's start, its end, or a time.

    Refused while replicas read them, unless they are paused. If one is refused none is moved.
    """
    goal = parse_to(to)

    def choose(topics: Mapping[str, Topic]) -> Goals:
        return dict.fromkeys(chosen(topics, topic, partition or []), goal)

    _move(target, config, choose, why, dry_run=dry_run, as_json=as_json)


def _move(
    target: str, config: Path | None, choose: Choose, why: str, *, dry_run: bool, as_json: bool
) -> None:
    """Move offsets and print what became of them. Raises ServiceError if one is refused."""
    note = cli.signed(why)
    with (
        cli.opened_pipeline(target, config) as pipeline,
        replica_nodes(pipeline.config, pipeline.name) as nodes,
    ):
        rows, reason = move_offsets(pipeline, nodes, choose, note, dry_run=dry_run)
    moved = sum(row.outcome == "moved" for row in rows)
    if as_json:
        facts: dict[str, Any] = {
            "pipeline": nodes.pipeline,
            "dry_run": dry_run,
            "by": note.by,
            "why": why,
        }
        facts |= {"moved": moved, "refused": len(refused(rows)), "consumed": reason}
        facts["partitions"] = {str(row.partition): row.as_json() for row in rows}
        cli.print_json(facts)
    else:
        _show(rows, reason, dry_run=dry_run)
    check_complete(rows, f"{moved} were moved before" if moved else "nothing was moved")


def move_offsets(
    pipeline: Parts, nodes: ReplicaNodes, choose: Choose, note: Note, *, dry_run: bool
) -> tuple[list[MoveRow], str | None]:
    """Read all, judge all, then move: all or nothing, but for what fails while it is written.

    Returns the rows, and of a dry run why nothing could be moved now. Raises ServiceError while
    replicas read, typer.BadParameter, and what the catalogue and the nodes raise.
    """
    reason = None
    # Paused, a replica releases a partition that was moved, and opens it anew.
    if (members := nodes.members()) and nodes.control().paused is None:
        reason = (
            f"the partitions are being consumed by {', '.join(each.name for each in members)}: "
            "pause the pipeline first (headrace pause), or stop them"
        )
        if not dry_run:
            raise ServiceError(f"{reason}; nothing was moved")
    nodes.changes()  # what could not be recorded is not moved
    sources, catalogue, store = pipeline.topology.sources, pipeline.catalogue, pipeline.store
    topics = cli.topics_of(sources, catalogue)
    if not topics:  # patterns only
        raise TopicMissing(", ".join(one.label for one in sources))
    goals = choose(topics)
    # All at once: the catalogue asks for them together.
    asked = {
        each: catalogue.log(each, goal.timestamp_ms if isinstance(goal, AtTimestamp) else None)
        for each, goal in sorted(goals.items(), key=lambda item: item[0])
    }
    judge = partial(
        judge_move,
        pipeline=nodes.pipeline,
        exactly_once=pipeline.topology.reliability == "exactly-once",
    )
    rows = [
        judge(each, goals[each], cli.answer(log), cli.stored_offset(store, each))
        for each, log in asked.items()
    ]
    if dry_run or refused(rows):
        return rows, reason

    def write(row: MoveRow) -> MoveRow:
        before = _store(pipeline, note, row, len(topics[row.partition.topic].partitions))
        row = replace(row, outcome="moved", before=row.before if before is None else before)
        moved = str(row.partition), row.before, row.to
        try:
            nodes.record(OffsetChange(note.at_ms, note.by, note.why, *moved))
        except PartitionError as error:
            reason = f"moved, but who and why could not be kept: {cli.describe(error)}"
            return replace(row, outcome="failed", note=reason)
        return row

    return write_in_turn(rows, write), reason


def judge_move(
    partition: Partition,
    goal: StartFrom,
    log: Log,
    stored: StoredOffset | StoreError | None,
    pipeline: str,
    *,
    exactly_once: bool,
) -> MoveRow:
    """Decide about one partition. An offset outside [log start, log end] is always refused."""
    to = _offset(goal, log)
    outcome = "refused"
    if not log.start <= to <= log.end:
        note = f"the log holds {log.start} to {log.end}, not offset {to}"
    elif isinstance(stored, StoreCorrupt) and not exactly_once:
        outcome, note = "to_move", f"{stored}; it is replaced"
    elif isinstance(stored, StoreError):
        note = str(stored)
    elif stored is None:
        outcome, note = "to_move", "nothing is stored; it is begun there"
    elif stored.topology_id != pipeline:
        found = f"topology '{stored.topology_id}' stored its offset, not '{pipeline}'"
        note = f"{found}; use another [pipeline] name"
    else:
        note = still_open(stored)
        outcome = "refused" if note else "to_move"
    before = stored.offset if isinstance(stored, StoredOffset) else None
    return MoveRow(partition, outcome, note, log, to, before)


def still_open(stored: StoredOffset) -> str:
    """Return which open transactions a move would lose; nothing if there are none."""
    opened = stored.transactions.open if stored.transactions else ()
    if not opened:
        return ""
    txids = ", ".join(str(each.txid) for each in opened)
    return f"transactions are open ({txids}): let a replica finish them, then move it"


def _store(pipeline: Parts, note: Note, row: MoveRow, partitions: int) -> int | None:
    """Store a row's position; return what was stored until then. Raises what the store does."""
    partition, reason = row.partition, f"{note.by}: {note.why}"
    # Of no record's epoch: the leader's shows a later cut of the log, too.
    position = Position(row.to, row.log.leader_epoch, row.log.topic_id)
    stored: StoredOffset | None = None
    try:
        stored = cli.claimed(pipeline.store, partition, "a move").stored
    except (StoreMissing, StoreCorrupt):
        if pipeline.topology.reliability == "exactly-once":  # the count of transactions is lost
            raise
    else:
        if stored is None:
            cli.done(pipeline.store.begin(partition, position, partitions), "a move")
            log.info(
                "offset_moved", partition=str(partition), before=None, offset=row.to, reason=reason
            )
            return None
    if stored is not None and (trouble := still_open(stored)):  # opened since it was judged
        raise StoreError(trouble)
    # The count of transactions goes on: the sinks have it, too.
    kept = replace(stored.transactions, open=()) if stored and stored.transactions else None
    cli.done(pipeline.store.move(partition, position, reason, kept), "a move")
    return stored.offset if stored else None


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
    message = f"'{text}': expected earliest, latest, or milliseconds since 1970 (UTC)"
    raise typer.BadParameter(message, param_hint="--to")


def chosen(
    topics: Mapping[str, Topic], topic: str | None, numbers: Sequence[int]
) -> list[Partition]:
    """Return the chosen partitions: of one topic or all, these numbers or all.

    Raises typer.BadParameter, naming those that are allowed.
    """
    if topic is not None and topic not in topics:
        message = f"the topology does not read '{topic}', but {', '.join(sorted(topics))}"
        raise typer.BadParameter(message, param_hint="--topic")
    if numbers and topic is None and len(topics) > 1:
        message = f"of which topic? --topic is needed: {', '.join(sorted(topics))}"
        raise typer.BadParameter(message, param_hint="--partition")
    there = cli.partitions_of(each for name, each in topics.items() if topic in (None, name))
    if not numbers:
        return sorted(there)
    missing = sorted(set(numbers) - {each.number for each in there})
    if missing:
        message = f"there is no partition {missing[0]}, but {_named(there)}"
        raise typer.BadParameter(message, param_hint="--partition")
    return sorted(each for each in there if each.number in numbers)


def _offset(goal: StartFrom, log: Log) -> int:
    if isinstance(goal, AtOffset):
        return goal.offset
    if isinstance(goal, AtTimestamp):
        return log.end if log.at_timestamp is None else log.at_timestamp
    return log.start if goal == "earliest" else log.end


def _named(partitions: Collection[Partition]) -> str:
    found = sorted(by_topic(partitions).items())
    return ", ".join(f"{topic} {numbers}" for topic, numbers in found) or "none"


def _show(rows: Sequence[MoveRow], reason: str | None, *, dry_run: bool) -> None:
    words = {"to_move": "would be moved" if dry_run else "not moved"}
    show_rows(rows, ("from", "to", "log_start", "log_end"), words)
    said = [f"{row.partition}: {row.note}" for row in rows if row.note]
    moved = f"{sum(row.outcome == 'moved' for row in rows)} of {len(rows)} partitions moved"
    said.append("nothing was moved (--dry-run)" if dry_run else moved)
    if reason is not None:
        said.append(f"now it would be refused: {reason}")
    cli.print_lines(said)
