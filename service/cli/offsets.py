"""`headrace offsets show`, `set` and `reset`: where partitions stand, and are read on.

Before a move everything is read and judged; then it is written. A move raises the epoch, so
whoever has the partition is fenced: a replica releases it, and opens it anew where it was moved to.

The imports inside functions keep `headrace --help` quick.
"""

import http.client
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import structlog
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from partition.errors import PartitionError, StoreCorrupt, StoreError, StoreMissing, TopicMissing
from partition.interfaces import AtOffset, AtTimestamp, Log, StartFrom, StoredOffset, Topic
from partition.records import Partition, Position
from partition.replicas.plan import Control, Member, by_topic
from service.cli.common import (
    CheckOnly,
    ConfigPath,
    Json,
    OpenPipeline,
    Target,
    Why,
    answer,
    answers,
    cell,
    configured,
    describe,
    done,
    load_topology,
    now_ms,
    opened_pipeline,
    partitions_of,
    print_json,
    print_lines,
    stored_offset,
    topics_of,
    whoami,
)
from service.cli.replicas import Change, ReplicaNodes, replica_nodes
from service.errors import ServiceError

if TYPE_CHECKING:  # slow to import
    from service.config.settings import HttpConfig

log = structlog.get_logger()
offsets_app = typer.Typer(
    help="What is committed in ZooKeeper, against what Kafka has.", no_args_is_help=True
)

Goals: TypeAlias = Mapping[Partition, StartFrom]
Outcome: TypeAlias = Literal["moved", "to_move", "refused", "failed"]

_PLACE = "TOPIC:PARTITION=OFFSET"
_PLACE_FORM = re.compile(r"(.+):(\d{1,9})=(\d{1,18})")
_WORDS = {"moved": "moved", "to_move": "not moved", "refused": "refused", "failed": "failed"}
_FRONTIER = "headrace_partition_frontier_offset{"
_SCRAPE_SECONDS = 2.0


class StillConsumed(ServiceError):
    """Replicas read the partitions that were to be moved; nothing was moved."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; nothing was moved")


class NotMoved(ServiceError):
    """Some of the offsets were refused, or could not be stored."""

    def __init__(self, refused: int, partitions: int, moved: int) -> None:
        done = f"{moved} were moved before" if moved else "nothing was moved"
        super().__init__(f"{refused} of {partitions} partitions refused or failed; {done}")


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """What an operator asks for; `goals` chooses among the topics that the topology reads."""

    goals: Callable[[Mapping[str, Topic]], Goals]  # raises typer.BadParameter
    why: str
    by: str
    at_ms: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class MoveRow:
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


@offsets_app.command("set")
def offsets_set(
    target: Target,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC:PARTITION=OFFSET", help="Where to read on: orders:0=84210. Several may."
        ),
    ],
    why: Why,
    config: ConfigPath = None,
    *,
    dry_run: CheckOnly = False,
    as_json: Json = False,
) -> None:
    """Set the offsets at which partitions are read on, forward or back.

    Refused while replicas read them, unless they are paused. If one is refused none is moved.
    """
    asked = parse_places(places)

    def goals(topics: Mapping[str, Topic]) -> Goals:
        check_are_read(asked, topics)
        return asked

    request = MoveRequest(goals, why, whoami(), now_ms(), dry_run)
    _move(target, config, request, as_json=as_json)


@offsets_app.command("reset")
def offsets_reset(
    target: Target,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="earliest, latest, or the first record from a time stamp on: "
            "milliseconds since 1970 (UTC).",
        ),
    ],
    why: Why,
    config: ConfigPath = None,
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this topic of the topology.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Only this partition; may be given several times."),
    ] = None,
    dry_run: CheckOnly = False,
    as_json: Json = False,
) -> None:
    """Set the offsets of all partitions, or of some, to the log's start, its end, or a time.

    Refused while replicas read them, unless they are paused. If one is refused none is moved.
    """
    goal = parse_to(to)

    def goals(topics: Mapping[str, Topic]) -> Goals:
        return dict.fromkeys(chosen(topics, topic, partition or []), goal)

    request = MoveRequest(goals, why, whoami(), now_ms(), dry_run)
    _move(target, config, request, as_json=as_json)


def _move(target: str, config: ConfigPath, request: MoveRequest, *, as_json: bool) -> None:
    """Raises StillConsumed, NotMoved."""
    topology, settings = load_topology(target), configured(config)
    with (
        replica_nodes(topology, settings) as nodes,
        opened_pipeline(topology, settings) as pipeline,
    ):
        rows, reason = move_offsets(pipeline, nodes, request)
    moved = sum(row.outcome == "moved" for row in rows)
    if as_json:
        print_json(
            {
                "pipeline": nodes.pipeline,
                "dry_run": request.dry_run,
                "by": request.by,
                "why": request.why,
                "moved": moved,
                "refused": len(_refused(rows)),
                "consumed": reason,
                "partitions": {str(row.partition): row.as_json() for row in rows},
            }
        )
    else:
        show_moves(answers(), rows, request, reason)
    if _refused(rows):
        raise NotMoved(len(_refused(rows)), len(rows), moved)


def move_offsets(
    pipeline: OpenPipeline, nodes: ReplicaNodes, request: MoveRequest
) -> tuple[list[MoveRow], str | None]:
    """Read all, judge all, then move: all or nothing, but for what fails while it is written.

    Returns the rows, and of a dry run why nothing could be moved now. Raises StillConsumed,
    typer.BadParameter, and what the catalogue and the nodes raise.
    """
    reason = consumed(nodes.members(), nodes.control())
    if reason is not None and not request.dry_run:
        raise StillConsumed(reason)
    nodes.changes()  # what could not be recorded is not moved
    sources, catalogue = pipeline.topology.sources, pipeline.catalogue
    topics = {each.name: each for one in sources for each in topics_of(one, catalogue)}
    if not topics:  # patterns only
        raise TopicMissing(", ".join(one.label for one in sources))
    goals = request.goals(topics)
    # All at once: the catalogue asks for them together.
    asked = {
        each: catalogue.log(each, goal.timestamp_ms if isinstance(goal, AtTimestamp) else None)
        for each, goal in sorted(goals.items(), key=lambda item: item[0])
    }
    exactly_once = pipeline.topology.reliability == "exactly-once"
    rows = [
        judge_move(
            each,
            goals[each],
            answer(found),
            stored_offset(pipeline.store, each),
            nodes.pipeline,
            exactly_once=exactly_once,
        )
        for each, found in asked.items()
    ]
    if request.dry_run or _refused(rows):
        return rows, reason
    return _write(pipeline, nodes, request, rows, topics), reason


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
    before = stored.offset if isinstance(stored, StoredOffset) else None
    row = MoveRow(partition, "to_move", "", log, to, before)
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


def _refused(rows: Iterable[MoveRow]) -> list[MoveRow]:
    """Return the rows that keep a move from being complete."""
    return [row for row in rows if row.outcome in ("refused", "failed")]


def _write(
    pipeline: OpenPipeline,
    nodes: ReplicaNodes,
    request: MoveRequest,
    rows: Sequence[MoveRow],
    topics: Mapping[str, Topic],
) -> list[MoveRow]:
    """Move one after the other, and record each; the first that fails ends it."""
    written: list[MoveRow] = []
    for row in rows:
        if any(each.outcome == "failed" for each in written):
            written.append(row)
            continue
        try:
            before = _store(pipeline, request, row, len(topics[row.partition.topic].partitions))
        except PartitionError as error:
            written.append(row.become("failed", describe(error)))
            continue
        moved = row.become("moved", row.note, before=before)
        change = Change(
            request.at_ms, request.by, request.why, str(row.partition), moved.before, row.to
        )
        try:
            nodes.record(change)
        except PartitionError as error:
            reason = f"moved, but who and why could not be kept: {describe(error)}"
            moved = moved.become("failed", reason)
        written.append(moved)
    return written


def _store(
    pipeline: OpenPipeline, request: MoveRequest, row: MoveRow, partitions: int
) -> int | None:
    """Store a row's position; return what was stored until then. Raises what the store does."""
    partition, reason = row.partition, f"{request.by}: {request.why}"
    stored: StoredOffset | None = None
    try:
        claim = done(pipeline.store.claim(partition), "a move")
    except (StoreMissing, StoreCorrupt):
        if (
            pipeline.topology.reliability == "exactly-once"
        ):  # up to which txid the sinks have it was stored there
            raise
    else:
        stored = claim.stored
        if stored is None:
            done(pipeline.store.begin(partition, row.position, partitions), "a move")
            log.info(
                "offset_moved", partition=str(partition), before=None, offset=row.to, reason=reason
            )
            return None
    trouble = still_open(stored) if stored else None
    if trouble is not None:  # opened since it was judged
        raise StoreError(trouble)
    # The count of transactions goes on: the sinks have it, too.
    kept = replace(stored.transactions, open=()) if stored and stored.transactions else None
    done(pipeline.store.move(partition, row.position, reason, kept), "a move")
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


def show_moves(
    console: Console, rows: Sequence[MoveRow], request: MoveRequest, reason: str | None
) -> None:
    """Print the rows as a table, and a line for each that needs more words."""
    table = Table()
    table.add_column("partition")
    for name in ("from", "to", "log start", "log end"):
        table.add_column(name, justify="right")
    table.add_column("what happens")
    for row in rows:
        words = _WORDS[row.outcome]
        if row.outcome == "to_move" and request.dry_run:
            words = "would be moved"
        numbers = (row.before, row.to, row.log.start, row.log.end)
        table.add_row(escape(str(row.partition)), *map(cell, numbers), words)
    console.print(table)
    said = [f"{row.partition}: {row.note}" for row in rows if row.note]
    moved = f"{sum(row.outcome == 'moved' for row in rows)} of {len(rows)} partitions moved"
    said.append("nothing was moved (--dry-run)" if request.dry_run else moved)
    if reason is not None:
        said.append(f"now it would be refused: {reason}")
    print_lines(console, said)


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition. Offsets are the next to read; None where there is none to know."""

    partition: str
    committed: int | None  # None: nothing is stored
    epoch: int | None  # how often the partition has been claimed
    frontier: int | None  # None: no running service answered
    log_start: int
    log_end: int
    committed_txid: int | None = None  # in every sink; None: nothing of it is exactly-once
    open_txids: tuple[int, ...] = ()  # recorded, and not known to be in every sink

    @property
    def lag(self) -> int:
        """Offsets between what is committed, or else the log's start, and the log's end."""
        return self.log_end - (self.log_start if self.committed is None else self.committed)

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        facts = asdict(self)
        del facts["partition"]
        return facts | {"lag": self.lag}


@offsets_app.command("show")
def offsets_show(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Show committed, frontier, log start, log end, lag and epoch of every partition.

    The frontier is a running service's own; it is asked for it at the configured [http] port.
    """
    topology, settings = load_topology(target), configured(config)
    with opened_pipeline(topology, settings) as pipeline:
        rows = read_offsets(pipeline, live_frontiers(settings.http))
    if as_json:
        print_json({"partitions": {row.partition: row.as_json() for row in rows}})
    else:
        show_offsets(answers(), rows)


def read_offsets(pipeline: OpenPipeline, frontiers: Mapping[Partition, int]) -> list[OffsetRow]:
    """Read ZooKeeper and Kafka; the frontiers come from the running service, if it serves HTTP."""
    partitions = partitions_of(pipeline.topology, pipeline.catalogue)
    # All at once: the catalogue asks for them together.
    asked = [(partition, pipeline.catalogue.log(partition)) for partition in partitions]
    rows = []
    for partition, log in asked:
        found = answer(log)
        stored = pipeline.store.load(partition)
        transactions = stored.transactions if stored is not None else None
        rows.append(
            OffsetRow(
                partition=str(partition),
                committed=stored.offset if stored is not None else None,
                epoch=stored.epoch if stored is not None else None,
                frontier=frontiers.get(partition),
                log_start=found.start,
                log_end=found.end,
                committed_txid=transactions.committed if transactions else None,
                open_txids=tuple(each.txid for each in transactions.open) if transactions else (),
            )
        )
    return rows


def show_offsets(console: Console, rows: list[OffsetRow]) -> None:
    """Print the rows as a table; transactions only if a partition has any."""
    names = ["committed", "frontier", "log start", "log end", "lag", "epoch"]
    transactional = any(row.committed_txid is not None for row in rows)
    table = Table()
    table.add_column("partition")
    for name in [*names, "txid", "open"] if transactional else names:
        table.add_column(name, justify="right")
    for row in rows:
        numbers = [row.committed, row.frontier, row.log_start, row.log_end, row.lag, row.epoch]
        if transactional:
            numbers += [row.committed_txid, len(row.open_txids)]
        table.add_row(escape(row.partition), *map(cell, numbers))
    console.print(table)


def live_frontiers(http_config: "HttpConfig") -> dict[Partition, int]:
    """The frontiers that a running service shows; empty when none answers in 2 seconds."""
    if not http_config.port:
        return {}
    connection = http.client.HTTPConnection(
        http_config.host, http_config.port, timeout=_SCRAPE_SECONDS
    )
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode() if answer.status == HTTPStatus.OK else ""
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return {}  # no service, or another one
    finally:
        connection.close()
    frontiers: dict[Partition, int] = {}
    for line in text.splitlines():
        if line.startswith(_FRONTIER):
            labels, value = line.removeprefix(_FRONTIER).rsplit("} ", 1)
            named = dict(label.split("=", 1) for label in labels.split(","))
            topic, number = named["topic"].strip('"'), int(named["partition"].strip('"'))
            frontiers[Partition(topic, number)] = int(float(value))
    return frontiers
