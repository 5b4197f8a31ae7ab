"""`headrace offsets set` and `reset`: an operator says where partitions are read on.

Everything is read and judged before anything is written. A move raises the epoch, so whoever
has the partition is fenced: a replica that shares partitions releases it, and opens it anew
where it was moved to.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import structlog
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from partition.errors import (
    PartitionError,
    StoreCorrupt,
    StoreError,
    StoreMissing,
    StoreUnavailable,
    TopicMissing,
)
from partition.interfaces import AtTimestamp, Catalogue, OffsetStore, StartFrom, StoredOffset, Topic
from partition.records import Partition
from service.cli.changes import Change
from service.cli.lines import describe, print_json
from service.cli.loading import configured, load_topology
from service.cli.moves import (
    Known,
    Row,
    check_are_read,
    chosen,
    consumed,
    judge,
    parse_places,
    parse_to,
    refused,
    still_open,
)
from service.cli.render import answers
from service.cli.replica_nodes import ReplicaNodes, now_ms, replica_nodes, whoami
from service.cli.topics import ASK_SECONDS, answer, topics_of
from service.errors import ServiceError
from service.parts import wire
from topology.topology import Topology

log = structlog.get_logger()
T = TypeVar("T")
Goals: TypeAlias = Mapping[Partition, StartFrom]

_WORDS = {"moved": "moved", "to_move": "not moved", "refused": "refused", "failed": "failed"}


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
class Order:
    """What an operator asks for: where which partitions go, as far as the topology has them."""

    goals: Callable[[Mapping[str, Topic]], Goals]  # raises typer.BadParameter
    why: str
    by: str
    at_ms: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a move asks and writes to; all of it open."""

    topology: Topology
    nodes: ReplicaNodes
    catalogue: Catalogue
    store: OffsetStore

    @property
    def exactly_once(self) -> bool:
        """Whether the sinks count transactions."""
        return self.topology.reliability == "exactly-once"


def set_offsets(
    target: str,
    config: Path | None,
    places: Sequence[str],
    why: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move each of these partitions to its offset. Raises StillConsumed, NotMoved."""
    asked = parse_places(places)

    def goals(topics: Mapping[str, Topic]) -> Goals:
        check_are_read(asked, topics)
        return asked

    _move(target, config, Order(goals, why, whoami(), now_ms(), dry_run), as_json=as_json)


def reset_offsets(
    target: str,
    config: Path | None,
    to: str,
    topic: str | None,
    numbers: Sequence[int],
    why: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move these partitions, or all, to where `to` says. Raises StillConsumed, NotMoved."""
    goal = parse_to(to)

    def goals(topics: Mapping[str, Topic]) -> Goals:
        return dict.fromkeys(chosen(topics, topic, numbers), goal)

    _move(target, config, Order(goals, why, whoami(), now_ms(), dry_run), as_json=as_json)


def carry_out(rooms: Rooms, order: Order) -> tuple[list[Row], str | None]:
    """Read all, judge all, then move: all or nothing, but for what fails while it is written.

    Returns the rows, and of a dry run why nothing could be moved now. Raises StillConsumed,
    typer.BadParameter, and what the catalogue and the nodes raise.
    """
    reason = consumed(rooms.nodes.members(), rooms.nodes.control())
    if reason is not None and not order.dry_run:
        raise StillConsumed(reason)
    rooms.nodes.changes()  # what could not be recorded is not moved
    sources = rooms.topology.sources
    topics = {each.name: each for one in sources for each in topics_of(one, rooms.catalogue)}
    if not topics:  # patterns only
        raise TopicMissing(", ".join(one.label for one in sources))
    goals = order.goals(topics)
    # All at once: the catalogue asks for them together.
    asked = {each: rooms.catalogue.log(each, _timestamp(goals[each])) for each in sorted(goals)}
    rows = [
        judge(
            Known(each, goals[each], answer(found), _stored(rooms.store, each)),
            rooms.nodes.pipeline,
            exactly_once=rooms.exactly_once,
        )
        for each, found in asked.items()
    ]
    if order.dry_run or refused(rows):
        return rows, reason
    return _write(rooms, order, rows, topics), reason


def show_rows(console: Console, rows: Sequence[Row], order: Order, reason: str | None) -> None:
    """Print the rows as a table, and a line for each that needs more words."""
    table = Table()
    table.add_column("partition")
    for name in ("from", "to", "log start", "log end"):
        table.add_column(name, justify="right")
    table.add_column("what happens")
    for row in rows:
        words = _WORDS[row.outcome]
        if row.outcome == "to_move" and order.dry_run:
            words = "would be moved"
        numbers = (row.before, row.to, row.log.start, row.log.end)
        cells = ("-" if each is None else f"{each:,}" for each in numbers)
        table.add_row(escape(str(row.partition)), *cells, words)
    console.print(table)
    said = [f"{row.partition}: {row.note}" for row in rows if row.note]
    moved = f"{sum(row.outcome == 'moved' for row in rows)} of {len(rows)} partitions moved"
    said.append("nothing was moved (--dry-run)" if order.dry_run else moved)
    if reason is not None:
        said.append(f"now it would be refused: {reason}")
    for line in said:
        console.print(escape(line), soft_wrap=True, highlight=False)


def _move(target: str, config: Path | None, order: Order, *, as_json: bool) -> None:
    topology = load_topology(target)
    topology.validate()
    settings = configured(config)
    parts = wire(topology, settings)
    with ExitStack() as closing:
        nodes = closing.enter_context(replica_nodes(topology, settings))
        for each in (parts.catalogue, parts.store):
            closing.callback(each.close)
            each.open()
        rooms = Rooms(topology, nodes, parts.catalogue, parts.store)
        rows, reason = carry_out(rooms, order)
    moved = sum(row.outcome == "moved" for row in rows)
    if as_json:
        print_json(
            {
                "pipeline": nodes.pipeline,
                "dry_run": order.dry_run,
                "by": order.by,
                "why": order.why,
                "moved": moved,
                "refused": len(refused(rows)),
                "consumed": reason,
                "partitions": {str(row.partition): row.as_json() for row in rows},
            }
        )
    else:
        show_rows(answers(), rows, order, reason)
    if refused(rows):
        raise NotMoved(len(refused(rows)), len(rows), moved)


def _write(
    rooms: Rooms, order: Order, rows: Sequence[Row], topics: Mapping[str, Topic]
) -> list[Row]:
    """Move one after the other, and record each; the first that fails ends it."""
    written: list[Row] = []
    for row in rows:
        if any(each.outcome == "failed" for each in written):
            written.append(row)
            continue
        try:
            before = _store(rooms, order, row, len(topics[row.partition.topic].partitions))
        except PartitionError as error:
            written.append(row.become("failed", describe(error)))
            continue
        moved = row.become("moved", row.note, before=before)
        change = Change(order.at_ms, order.by, order.why, str(row.partition), moved.before, row.to)
        try:
            rooms.nodes.record(change)
        except PartitionError as error:
            reason = f"moved, but who and why could not be kept: {describe(error)}"
            moved = moved.become("failed", reason)
        written.append(moved)
    return written


def _store(rooms: Rooms, order: Order, row: Row, partitions: int) -> int | None:
    """Store a row's position; return what was stored until then. Raises what the store does."""
    partition, reason = row.partition, f"{order.by}: {order.why}"
    stored: StoredOffset | None = None
    try:
        claim = _done(rooms.store.claim(partition))
    except (StoreMissing, StoreCorrupt):
        if rooms.exactly_once:  # up to which txid the sinks have it was stored there
            raise
    else:
        stored = claim.stored
        if stored is None:
            _done(rooms.store.begin(partition, row.position, partitions))
            log.info(
                "offset_moved", partition=str(partition), before=None, offset=row.to, reason=reason
            )
            return None
    trouble = still_open(stored) if stored else None
    if trouble is not None:  # opened since it was judged
        raise StoreError(trouble)
    # The count of transactions goes on: the sinks have it, too.
    kept = replace(stored.transactions, open=()) if stored and stored.transactions else None
    _done(rooms.store.move(partition, row.position, reason, kept))
    return stored.offset if stored else None


def _stored(store: OffsetStore, partition: Partition) -> StoredOffset | StoreError | None:
    try:
        return store.load(partition)
    except StoreUnavailable:
        raise
    except StoreError as error:
        return error


def _timestamp(goal: StartFrom) -> int | None:
    return goal.timestamp_ms if isinstance(goal, AtTimestamp) else None


def _done(asked: Future[T]) -> T:
    """Wait for the store; what may be done yet is told as that."""
    try:
        return asked.result(ASK_SECONDS)
    except TimeoutError:
        reason = f"no answer in {ASK_SECONDS:g} seconds; it may be carried out yet"
        raise StoreUnavailable("a move", reason) from None
