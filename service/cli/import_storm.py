"""`headrace offsets import-storm`: reads on where a Storm topology stopped.

Storm's nodes are only read. Everything is read and judged before anything is written.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from partition.errors import (
    PartitionError,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    StormUnreadable,
    TopicMissing,
)
from partition.interfaces import Catalogue, Log, OffsetStore, StoredOffset
from partition.records import Partition
from partition.storm_offsets import Found, Layout, StormOffset, Tree, read_offsets
from partition.zookeeper.zookeeper_editor import ZooKeeperEditor
from service.cli.lines import describe, print_json
from service.cli.loading import configured, load_topology
from service.cli.render import answers
from service.cli.takeover import Known, Outcome, Row, judge, refused
from service.cli.topics import ASK_SECONDS, answer, topics_of
from service.config import Config
from service.errors import NotImported, StormStillRuns
from service.parts import wire
from topology.steps import Source

log = structlog.get_logger()
T = TypeVar("T")

_WORDS: Mapping[Outcome, str] = {
    "imported": "imported",
    "to_import": "not imported",
    "stored_already": "stored already",
    "no_storm_node": "no Storm node",
    "refused": "refused",
    "failed": "failed",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What an operator asks for."""

    layout: Layout
    path: str
    storm_hosts: str | None = None  # None: the pipeline's own ensemble
    topic: str | None = None  # None: all topics of the topology
    dry_run: bool = False
    partial: bool = False
    allow_loss: bool = False
    watch_seconds: float = 3.0  # above a core spout's pause between commits, 2 seconds


@dataclass(frozen=True, slots=True)
class Rooms:
    """What an import asks and writes to; all of it open."""

    tree: Tree
    catalogue: Catalogue
    store: OffsetStore
    topology_id: str
    pause: Callable[[float], None] = time.sleep


def import_storm(target: str, config: Path | None, order: Order, *, as_json: bool) -> None:
    """Import, and print what became of each partition. Raises NotImported, StormStillRuns."""
    topology = load_topology(target)
    topology.validate()
    sources = _chosen(topology.sources, order.topic)
    settings = configured(config)
    parts = wire(topology, settings)
    tree = _reader(settings, order)
    with ExitStack() as closing:
        for each in (tree, parts.catalogue, parts.store):
            closing.callback(each.close)
            each.open()
        rooms = Rooms(tree, parts.catalogue, parts.store, parts.name)
        rows = carry_out(rooms, sources, order)
    place = f"{settings.zookeeper.root}/{parts.name}"
    if as_json:
        print_json(_facts(rows, order, place))
    else:
        show_rows(answers(), rows, order, place)
    bad = refused(rows)
    if bad:
        written = sum(row.outcome == "imported" for row in rows)
        raise NotImported(len(bad), len(rows), written)


def carry_out(rooms: Rooms, sources: Sequence[Source], order: Order) -> list[Row]:
    """Read all, judge all, then write: all or nothing, unless `partial`.

    Raises StormStillRuns, StormUnreadable (nothing of these topics is there), and what the
    catalogue and the store raise. What fails while it is written is in the rows.
    """
    topics = [topic for source in sources for topic in topics_of(source, rooms.catalogue)]
    if order.topic is not None:
        topics = [topic for topic in topics if topic.name == order.topic]
    names = sorted({topic.name for topic in topics})
    if not names:  # patterns only
        raise TopicMissing(order.topic or ", ".join(source.label for source in sources))
    found = read_offsets(rooms.tree, order.layout, order.path, names)
    partitions = {Partition(topic.name, n) for topic in topics for n in topic.partitions}
    asked = {each: rooms.catalogue.log(each) for each in partitions}
    ends: dict[Partition, Log] = {each: answer(future) for each, future in asked.items()}
    rows = [
        judge(
            Known(each, found.get(each), ends.get(each), _stored(rooms.store, each)),
            rooms.topology_id,
            allow_loss=order.allow_loss,
        )
        for each in sorted(partitions | set(found))
    ]
    rooms.pause(order.watch_seconds)
    moved = _moved(found, read_offsets(rooms.tree, order.layout, order.path, names))
    if order.dry_run:
        return [
            row.become(row.outcome, f"{row.note}; Storm still runs: this has just changed")
            if row.partition in moved
            else row
            for row in rows
        ]
    if moved:
        raise StormStillRuns(moved)
    if refused(rows) and not order.partial:
        return rows
    return _write(rooms.store, rows)


def show_rows(console: Console, rows: Sequence[Row], order: Order, place: str) -> None:
    """Print the rows as a table, and a line for each that needs more words."""
    table = Table()
    table.add_column("partition")
    for name in ("storm", "log start", "log end", "lag"):
        table.add_column(name, justify="right")
    table.add_column("what happens")
    for row in rows:
        numbers = (
            row.storm.offset if row.storm else None,
            row.log.start if row.log else None,
            row.log.end if row.log else None,
            row.lag,
        )
        words = _WORDS[row.outcome]
        if row.outcome == "to_import" and order.dry_run:
            words = "would be imported"
        cells = ("-" if cell is None else f"{cell:,}" for cell in numbers)
        table.add_row(escape(str(row.partition)), *cells, words)
    console.print(table)
    for row in rows:
        console.print(escape(f"{row.partition}: {row.note}"), soft_wrap=True, highlight=False)
    written = sum(row.outcome == "imported" for row in rows)
    said = "nothing was written (--dry-run)" if order.dry_run else f"{written} offsets written"
    console.print(escape(f"{said}; they belong below {place}"), soft_wrap=True, highlight=False)


def _facts(rows: Sequence[Row], order: Order, place: str) -> dict[str, Any]:
    return {
        "from": order.layout,
        "path": order.path,
        "to": place,
        "dry_run": order.dry_run,
        "imported": sum(row.outcome == "imported" for row in rows),
        "refused": len(refused(rows)),
        "partitions": {str(row.partition): row.as_json() for row in rows},
    }


def _chosen(sources: Sequence[Source], topic: str | None) -> Sequence[Source]:
    """The sources that are meant; `topic` may be one's name, or match one that is a pattern."""
    if topic is None:
        return sources
    meant = [
        source
        for source in sources
        if (
            source.topic == topic
            if isinstance(source.topic, str)
            else source.topic.fullmatch(topic)
        )
    ]
    if not meant:
        names = ", ".join(source.label for source in sources)
        message = f"the topology does not read '{topic}', but {names}"
        raise typer.BadParameter(message, param_hint="--topic")
    return meant


def _reader(settings: Config, order: Order) -> ZooKeeperEditor:
    """Storm's ensemble; credentials go to none but our own."""
    if order.storm_hosts is not None:
        return ZooKeeperEditor(order.storm_hosts)
    hosts = settings.zookeeper.hosts.partition("/")[0]  # Storm's path begins at the real root
    options = settings.zookeeper.security().kazoo_options()
    return ZooKeeperEditor(hosts, kazoo_options=options)


def _stored(store: OffsetStore, partition: Partition) -> StoredOffset | StoreError | None:
    try:
        return store.load(partition)
    except StoreUnavailable:
        raise
    except StoreError as error:
        return error


def _moved(first: Found, second: Found) -> list[Partition]:
    """The partitions whose nodes are not the same in two readings."""
    return [
        partition
        for partition in sorted(set(first) | set(second))
        if _what(first.get(partition)) != _what(second.get(partition))
    ]


def _what(found: StormOffset | StormUnreadable | None) -> StormOffset | str | None:
    return str(found) if isinstance(found, StormUnreadable) else found


def _write(store: OffsetStore, rows: Sequence[Row]) -> list[Row]:
    """Store one after the other, and read each back; the first that fails ends it."""
    written: list[Row] = []
    for row in rows:
        if row.outcome != "to_import" or any(each.outcome == "failed" for each in written):
            written.append(row)
            continue
        try:
            _begin(store, row)
        except PartitionError as error:
            written.append(row.become("failed", describe(error)))
        else:
            written.append(row.become("imported"))
            node = row.storm.path if row.storm else ""
            log.info(
                "storm_offset_imported",
                partition=str(row.partition),
                offset=row.position.offset,
                topic_id=row.position.topic_id,
                node=node,
            )
    return written


def _begin(store: OffsetStore, row: Row) -> None:
    """Store a row's position as a partition's first. Raises what the store raises."""
    claim = _done(store.claim(row.partition))
    if claim.stored is not None:
        raise StoreConflict(str(row.partition), f"offset {claim.stored.offset}, just stored")
    _done(store.begin(row.partition, row.position))
    back = store.load(row.partition)
    if back is None or back.position != row.position:
        raise StoreError(f"{row.partition}: {row.position} was stored, and {back} is read back")


def _done(asked: Future[T]) -> T:
    """Wait for the store, as `answer` does for Kafka; what may be done yet is told as that."""
    try:
        return asked.result(ASK_SECONDS)
    except TimeoutError:
        reason = f"no answer in {ASK_SECONDS:g} seconds; it may be carried out yet"
        raise StoreUnavailable("a first offset", reason) from None
