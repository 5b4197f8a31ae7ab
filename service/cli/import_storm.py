"""`headrace offsets import-storm`: take over the offsets at which a Storm topology stopped.

Storm's nodes are only read. Everything is read and judged before anything is written.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import structlog
import typer

from partition.errors import StoreConflict, StoreError, StormUnreadable, TopicMissing
from partition.interfaces import Log, StoredOffset, Topic
from partition.offsets.offset_store import OffsetStore
from partition.records import Partition, Position
from partition.storm_offsets import Found, StormOffset, read_offsets
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.cli import common as cli
from service.cli.offsets import OffsetRow, app, check_complete, refused, show_rows, write_in_turn
from service.config.settings import Config
from service.errors import ServiceError
from service.wiring import Parts
from topology.steps import Source
from topology.topology import Topology

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ImportRow(OffsetRow):
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


@app.command("import-storm")
def offsets_import_storm(
    target: cli.Target,
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
    config: cli.ConfigPath = None,
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
    dry_run: cli.DryRun = False,
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
    ] = 3.0,  # above the pause of a core spout between commits, 2 s
    as_json: cli.Json = False,
) -> None:
    """Take over the offsets of a Storm topology that is deactivated.

    Storm's nodes stay as they are. If one partition is refused nothing is written.
    """
    with (
        cli.opened_pipeline(target, config, lambda topology: _sources(topology, topic)) as pipeline,
        closing(_reader(pipeline.config, storm_zookeeper)) as tree,
    ):
        topics = _topics(pipeline, topic)
        tree.open()
        rows = import_offsets(
            pipeline,
            lambda: read_offsets(tree, layout, path, sorted(topics)),
            cli.partitions_of(topics.values()),
            dry_run=dry_run,
            partial=partial,
            allow_loss=allow_loss,
            watch_seconds=watch_seconds,
        )
    place = f"{pipeline.config.zookeeper.root}/{pipeline.name}"
    written = sum(row.outcome == "imported" for row in rows)
    if as_json:
        facts: dict[str, Any] = {"from": layout, "path": path, "to": place, "dry_run": dry_run}
        facts |= {"imported": written, "refused": len(refused(rows))}
        facts["partitions"] = {str(row.partition): row.as_json() for row in rows}
        cli.print_json(facts)
    else:
        _show(rows, f"{written} offsets written", place, dry_run=dry_run)
    left = "import the others before the pipeline runs: it would begin them at the log's start"
    done = f"{written} offsets were written; {left}" if written else "nothing was written"
    check_complete(rows, done)


def import_offsets(
    pipeline: Parts,
    read: Callable[[], Found],
    partitions: Sequence[Partition],
    *,
    dry_run: bool,
    partial: bool,
    allow_loss: bool,
    watch_seconds: float,
) -> list[ImportRow]:
    """Read all, judge all, then write: all or nothing, unless `partial`.

    Raises ServiceError if Storm still moves its offsets, StormUnreadable (nothing of these topics
    is there), and what the catalogue and the store raise. What fails while it is written is in
    the rows.
    """
    found = read()
    asked = {each: pipeline.catalogue.log(each) for each in partitions}
    logs: dict[Partition, Log] = {each: cli.answer(future) for each, future in asked.items()}
    rows = []
    for each in sorted({*partitions, *found}):
        facts = found.get(each), logs.get(each), cli.stored_offset(pipeline.store, each)
        rows.append(judge_import(each, *facts, pipeline.name, allow_loss=allow_loss))
    time.sleep(watch_seconds)
    moved = _moved(found, read())
    if dry_run:
        said = "; Storm still runs: this has just changed"
        return [replace(row, note=row.note + said * (row.partition in moved)) for row in rows]
    if moved:
        more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
        raise ServiceError(
            f"Storm still runs: its nodes of {moved[0]}{more} changed while they were watched; "
            "nothing was written; deactivate the topology, wait until its tuples have timed out, "
            "import again"
        )
    if refused(rows) and not partial:
        return rows
    return write_in_turn(rows, lambda row: _begin(pipeline.store, row))


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
    outcome = "refused"
    if isinstance(storm, StormUnreadable):
        note = str(storm)
    elif storm is None:
        outcome = "no_storm_node"
        note = f"Storm holds no offset for it; {_without_storm(stored)}"
    elif log is None:
        note = f"{storm.path} is of a partition that the topic does not have"
    elif isinstance(stored, StoreError):
        note = str(stored)
    elif stored is None:
        outcome, note = _against_log(storm, log, allow_loss=allow_loss)
    elif stored.topology_id != topology_id:
        note = f"topology '{stored.topology_id}' has stored offset {stored.offset} here"
    elif stored.offset != storm.offset:
        note = f"this pipeline has stored offset {stored.offset} already"
    else:
        outcome, note = "stored_already", storm.note
    found = storm if isinstance(storm, StormOffset) else None
    before = stored.offset if isinstance(stored, StoredOffset) else None
    return ImportRow(partition, outcome, note, found, log, before)


def _without_storm(stored: StoredOffset | StoreError | None) -> str:
    if stored is None:  # where others of its topic are stored, it counts as a new partition
        return "a run begins it at the log's start, or by start_from if none of its topic is stored"
    if isinstance(stored, StoreError):
        return str(stored)
    return f"a run goes on at the stored offset {stored.offset}"


def _against_log(storm: StormOffset, log: Log, *, allow_loss: bool) -> tuple[str, str]:
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


def _sources(topology: Topology, name: str | None) -> list[Source]:
    """Return the sources of a topic, or all; `name` may match one that is a pattern.

    Raises typer.BadParameter.
    """
    if name is None:
        return topology.sources
    try:
        return [topology.source_of(name)]
    except KeyError:
        labels = ", ".join(source.label for source in topology.sources)
        message = f"the topology does not read '{name}', but {labels}"
        raise typer.BadParameter(message, param_hint="--topic") from None


def _topics(pipeline: Parts, name: str | None) -> dict[str, Topic]:
    """Return the topics to import. Raises TopicMissing, and as the catalogue does."""
    sources = _sources(pipeline.topology, name)
    found = cli.topics_of(sources, pipeline.catalogue)
    topics = {each: topic for each, topic in found.items() if name in (None, each)}
    if not topics:  # patterns only
        raise TopicMissing(name or ", ".join(source.label for source in sources))
    return topics


def _reader(settings: Config, storm_hosts: str | None) -> ZooKeeperStore:
    """Return a reader of Storm's ensemble; credentials go to none but our own."""
    if storm_hosts is not None:
        return ZooKeeperStore(storm_hosts)
    hosts = settings.zookeeper.hosts.partition("/")[0]  # Storm's path begins at the real root
    options = settings.zookeeper.security().kazoo_options()
    return ZooKeeperStore(hosts, kazoo_options=options)


def _moved(first: Found, second: Found) -> list[Partition]:
    """Return the partitions whose nodes differ between two readings."""

    def comparable(found: Found, partition: Partition) -> StormOffset | str | None:
        node = found.get(partition)
        return str(node) if isinstance(node, StormUnreadable) else node

    every = sorted({*first, *second})
    return [each for each in every if comparable(first, each) != comparable(second, each)]


def _begin(store: OffsetStore, row: ImportRow) -> ImportRow:
    """Store a row's position as a partition's first, and read it back. Raises as the store."""
    if row.storm is None or row.log is None:
        raise AssertionError(row.outcome)
    partition, offset, topic_id = row.partition, row.storm.offset, row.log.topic_id
    position = Position(offset, None, topic_id)
    claim = cli.claimed(store, partition, "a first offset")
    if claim.stored is not None:
        raise StoreConflict(str(partition), f"offset {claim.stored.offset}, just stored")
    cli.done(store.begin(partition, position), "a first offset")
    back = store.load(partition)
    if back is None or back.position != position:
        raise StoreError(f"{partition}: {position} was stored, and {back} is read back")
    log.info(
        "storm_offset_imported",
        partition=str(partition),
        offset=offset,
        topic_id=topic_id,
        node=row.storm.path,
    )
    return replace(row, outcome="imported")


def _show(rows: Sequence[ImportRow], written: str, place: str, *, dry_run: bool) -> None:
    words = {
        "to_import": "would be imported" if dry_run else "not imported",
        "stored_already": "stored already",
        "no_storm_node": "no Storm node",
    }
    show_rows(rows, ("storm_offset", "log_start", "log_end", "lag"), words)
    said = "nothing was written (--dry-run)" if dry_run else written
    notes = [f"{row.partition}: {row.note}" for row in rows]
    cli.print_lines([*notes, f"{said}; they belong below {place}"])
