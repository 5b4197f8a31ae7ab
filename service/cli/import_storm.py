"""`headrace offsets import-storm`: take over the offsets at which a Storm topology stopped.

Storm's nodes are only read. Everything is read and judged before anything is written.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import structlog
import typer
from rich.console import Console

from partition.errors import (
    PartitionError,
    StoreConflict,
    StoreError,
    StormUnreadable,
    TopicMissing,
)
from partition.interfaces import Log, StoredOffset
from partition.offsets.offset_store import OffsetStore
from partition.records import Partition, Position
from partition.storm_offsets import Found, Layout, StormOffset, Tree, read_offsets
from service.cli.common import (
    ConfigPath,
    DryRun,
    Json,
    OpenPipeline,
    Target,
    answer,
    answers,
    claimed,
    configured,
    describe,
    done,
    load_topology,
    opened_pipeline,
    print_json,
    print_lines,
    stored_offset,
    table_of,
    topics_of,
)
from service.errors import NotImported, StormStillRuns

if TYPE_CHECKING:
    from partition.zookeeper.zookeeper_store import ZooKeeperStore
    from service.config.settings import Config
    from topology.steps import Source

log = structlog.get_logger()

Outcome: TypeAlias = Literal[
    "imported", "to_import", "stored_already", "no_storm_node", "refused", "failed"
]
_WORDS: Mapping[Outcome, str] = {
    "imported": "imported",
    "to_import": "not imported",
    "stored_already": "stored already",
    "no_storm_node": "no Storm node",
    "refused": "refused",
    "failed": "failed",
}


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """An operator's request."""

    layout: Layout
    path: str
    topic: str | None = None  # None: all topics of the topology
    dry_run: bool = False
    partial: bool = False
    allow_loss: bool = False
    watch_seconds: float = 3.0  # above a core spout's pause between commits, 2 seconds


@dataclass(frozen=True, slots=True)
class ImportRow:
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

    def as_json(self) -> dict[str, Any]:
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


def _checked_path(path: str) -> str:
    names = path.rstrip("/").split("/")
    if len(names) == 1 or names[0] or any(each in ("", ".", "..") for each in names[1:]):
        message = f"'{path}': a ZooKeeper path such as /kafka-spouts/word-count is needed"
        raise typer.BadParameter(message)
    return path.rstrip("/")


def offsets_import_storm(
    target: Target,
    layout: Annotated[
        Literal["core", "trident", "trident-client"],
        typer.Option(
            "--from",
            help="Who wrote the offsets: core and trident of storm-kafka, "
            "trident-client of storm-kafka-client.",
        ),
    ],
    path: Annotated[
        str,
        typer.Option(
            "--path",
            metavar="PATH",
            help="<zkRoot>/<id> of a core spout; "
            "<transactional.zookeeper.root>/<the stream's txid> of Trident.",
            callback=_checked_path,
        ),
    ],
    config: ConfigPath = None,
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this topic of the topology.")
    ] = None,
    storm_zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOSTS",
            help="Storm's ZooKeeper, if it is another one than the configuration's.",
        ),
    ] = None,
    dry_run: DryRun = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Import the others when partitions are refused.")
    ] = False,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Import offsets below the log's start as they stand."),
    ] = False,
    watch_seconds: Annotated[
        float,
        typer.Option(min=0, metavar="N", help="How long to watch whether Storm still commits."),
    ] = 3.0,
    as_json: Json = False,
) -> None:
    """Take over the offsets of a Storm topology that is deactivated.

    Storm's nodes stay as they are. If one partition is refused nothing is written.
    """
    request = ImportRequest(layout, path, topic, dry_run, partial, allow_loss, watch_seconds)
    topology = load_topology(target)
    sources = _chosen(topology.sources, topic)
    settings = configured(config)
    tree = _reader(settings, storm_zookeeper)
    try:
        tree.open()
        with opened_pipeline(topology, settings) as pipeline:
            rows = import_offsets(pipeline, tree, sources, request)
    finally:
        tree.close()
    place = f"{settings.zookeeper.root}/{pipeline.name}"
    bad, written = _refused(rows), sum(row.outcome == "imported" for row in rows)
    if as_json:
        print_json(
            {
                "from": layout,
                "path": path,
                "to": place,
                "dry_run": dry_run,
                "imported": written,
                "refused": len(bad),
                "partitions": {str(row.partition): row.as_json() for row in rows},
            }
        )
    else:
        show_imports(answers(), rows, request, place)
    if bad:
        raise NotImported(len(bad), len(rows), written)


def import_offsets(
    pipeline: OpenPipeline,
    tree: Tree,
    sources: "Sequence[Source]",
    request: ImportRequest,
    pause: Callable[[float], None] = time.sleep,
) -> list[ImportRow]:
    """Read all, judge all, then write: all or nothing, unless `partial`.

    Raises StormStillRuns, StormUnreadable (nothing of these topics is there), and what the
    catalogue and the store raise. What fails while it is written is in the rows.
    """
    topics = [topic for source in sources for topic in topics_of(source, pipeline.catalogue)]
    if request.topic is not None:
        topics = [topic for topic in topics if topic.name == request.topic]
    names = sorted({topic.name for topic in topics})
    if not names:  # patterns only
        raise TopicMissing(request.topic or ", ".join(source.label for source in sources))
    found = read_offsets(tree, request.layout, request.path, names)
    partitions = {Partition(topic.name, n) for topic in topics for n in topic.partitions}
    asked = {each: pipeline.catalogue.log(each) for each in partitions}
    ends: dict[Partition, Log] = {each: answer(future) for each, future in asked.items()}
    rows = [
        judge_import(
            each,
            found.get(each),
            ends.get(each),
            stored_offset(pipeline.store, each),
            pipeline.name,
            allow_loss=request.allow_loss,
        )
        for each in sorted(partitions | set(found))
    ]
    pause(request.watch_seconds)
    moved = _moved(found, read_offsets(tree, request.layout, request.path, names))
    if request.dry_run:
        return [
            replace(row, note=f"{row.note}; Storm still runs: this has just changed")
            if row.partition in moved
            else row
            for row in rows
        ]
    if moved:
        raise StormStillRuns(moved)
    if _refused(rows) and not request.partial:
        return rows
    return _write(pipeline.store, rows)


def judge_import(
    partition: Partition,
    storm: StormOffset | StormUnreadable | None,
    log: Log | None,
    stored: StoredOffset | StoreError | None,
    topology_id: str,
    *,
    allow_loss: bool,
) -> ImportRow:
    """Decide about one partition. `topology_id` is the one that our offsets are stored under.

    Without `storm`, Storm holds no offset for it; without `log`, the topic has no such partition.
    An offset outside [log start, log end] is refused. `allow_loss` lets one below the start
    through as it stands: the run then applies `on_data_loss`, which counts what is gone.
    """
    outcome, note = _verdict(storm, log, stored, topology_id, allow_loss=allow_loss)
    found = storm if isinstance(storm, StormOffset) else None
    before = stored.offset if isinstance(stored, StoredOffset) else None
    return ImportRow(partition, outcome, note, found, log, before)


def _refused(rows: Iterable[ImportRow]) -> list[ImportRow]:
    """Return the rows that keep an import from being complete."""
    return [row for row in rows if row.outcome in ("refused", "failed")]


def _verdict(
    storm: StormOffset | StormUnreadable | None,
    log: Log | None,
    stored: StoredOffset | StoreError | None,
    topology_id: str,
    *,
    allow_loss: bool,
) -> tuple[Outcome, str]:
    if isinstance(storm, StormUnreadable):
        return "refused", str(storm)
    if storm is None:
        return "no_storm_node", f"Storm holds no offset for it; {_without_storm(stored)}"
    if log is None:
        return "refused", f"{storm.path} is of a partition that the topic does not have"
    if stored is not None:
        trouble = _against_stored(storm, stored, topology_id)
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
    """Return the conflict with the offset that is stored already; None if it is the same."""
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


def _chosen(sources: "Sequence[Source]", topic: str | None) -> "Sequence[Source]":
    """Return the chosen sources; `topic` may be one's name, or match one that is a pattern."""
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


def _reader(settings: "Config", storm_hosts: str | None) -> "ZooKeeperStore":
    """Return a reader of Storm's ensemble; credentials go to none but our own."""
    from partition.zookeeper.zookeeper_store import ZooKeeperStore

    if storm_hosts is not None:
        return ZooKeeperStore(storm_hosts)
    hosts = settings.zookeeper.hosts.partition("/")[0]  # Storm's path begins at the real root
    options = settings.zookeeper.security().kazoo_options()
    return ZooKeeperStore(hosts, kazoo_options=options)


def _moved(first: Found, second: Found) -> list[Partition]:
    """Return the partitions whose nodes differ between two readings."""
    return [
        partition
        for partition in sorted(set(first) | set(second))
        if _what(first.get(partition)) != _what(second.get(partition))
    ]


def _what(found: StormOffset | StormUnreadable | None) -> StormOffset | str | None:
    return str(found) if isinstance(found, StormUnreadable) else found


def _write(store: OffsetStore, rows: Sequence[ImportRow]) -> list[ImportRow]:
    """Store one after the other, and read each back; the first that fails ends it."""
    written: list[ImportRow] = []
    for row in rows:
        if row.outcome != "to_import" or any(each.outcome == "failed" for each in written):
            written.append(row)
            continue
        try:
            position = _begin(store, row)
        except PartitionError as error:
            written.append(replace(row, outcome="failed", note=describe(error)))
        else:
            written.append(replace(row, outcome="imported"))
            log.info(
                "storm_offset_imported",
                partition=str(row.partition),
                offset=position.offset,
                topic_id=position.topic_id,
                node=row.storm.path if row.storm else "",
            )
    return written


def _begin(store: OffsetStore, row: ImportRow) -> Position:
    """Store a row's position as a partition's first. Raises what the store raises."""
    if row.storm is None or row.log is None:
        raise AssertionError(row.outcome)
    position = Position(row.storm.offset, None, row.log.topic_id)
    claim = claimed(store, row.partition, "a first offset")
    if claim.stored is not None:
        raise StoreConflict(str(row.partition), f"offset {claim.stored.offset}, just stored")
    done(store.begin(row.partition, position), "a first offset")
    back = store.load(row.partition)
    if back is None or back.position != position:
        raise StoreError(f"{row.partition}: {position} was stored, and {back} is read back")
    return position


def show_imports(
    console: Console, rows: Sequence[ImportRow], request: ImportRequest, place: str
) -> None:
    """Print the rows as a table, and a line for each that needs more words."""
    words = {**_WORDS, "to_import": "would be imported"} if request.dry_run else _WORDS
    columns = ("partition", ">storm", ">log start", ">log end", ">lag", "what happens")
    cells = (
        (
            str(row.partition),
            row.storm.offset if row.storm else None,
            row.log.start if row.log else None,
            row.log.end if row.log else None,
            row.lag,
            words[row.outcome],
        )
        for row in rows
    )
    console.print(table_of(columns, cells))
    written = sum(row.outcome == "imported" for row in rows)
    said = "nothing was written (--dry-run)" if request.dry_run else f"{written} offsets written"
    notes = [f"{row.partition}: {row.note}" for row in rows]
    print_lines(console, [*notes, f"{said}; they belong below {place}"])
