"""`headrace status`: replicas, partitions, offsets, and transactions beside what sinks have.

Everything is read from ZooKeeper and Kafka, so no replica needs to run. `--sinks` asks the sinks,
too; nothing is fenced and no row is written, so a service may run meanwhile.
"""

import http.client
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from partition.errors import KafkaError, PartitionError, StoreError
from partition.interfaces import Log, StoredOffset
from partition.records import OpenTransaction, Partition
from partition.replicas.balance import Control, Member, Plan, leader_of
from service.cli import common as cli
from service.cli.control import OffsetChange, ReplicaNodes, control_lines, replica_nodes
from service.cli.transactions import OpenSinks, Restart, committed_txid, compare, opened_sinks
from service.config.settings import HttpConfig
from service.dead_letters.printable import utc_text
from service.observability.charts import duration_text
from service.wiring import Parts
from topology.sink import Committed

app = typer.Typer()

_CHANGES_SHOWN = 3
_LEAST_ROWS = 5
_LINES_BESIDE = 20  # frames, titles and notes
_ASK_SECONDS = 2.0


@app.command()
def status(
    target: cli.Target,
    config: cli.ConfigPath = None,
    *,
    sinks: Annotated[
        bool,
        typer.Option(
            "--sinks", help="Ask each sink, too, and show what a restart would do (exactly-once)."
        ),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Seconds between two looks of --watch.")
    ] = 2.0,
    as_json: cli.Json = False,
) -> None:
    """Show the replicas, who owns which partition, and what is committed.

    Everything is read from ZooKeeper and Kafka, so no replica needs to run. The last completed
    offset is a running service's own; it is asked for it at the configured [http] port. With
    --sinks, sinks are opened as a run would open them, so empty tables and topics may be created.
    """
    try:
        with (
            cli.opened_pipeline(target, config) as pipeline,
            replica_nodes(pipeline.config, pipeline.name) as nodes,
            opened_sinks(pipeline) if sinks else nullcontext() as asked,
        ):

            def read() -> Status:
                return read_status(pipeline, nodes, ask_service(pipeline.config.http), asked)

            if watch:
                follow(read, interval, as_json=as_json)
            found = read()
    except KeyboardInterrupt:
        if watch:
            return
        raise
    if as_json:
        cli.print_json(found.as_json())
    else:
        cli.answers().print(render_status(found))
    if found.trouble is not None:
        raise found.trouble  # after what is known
    if found.sinks is not None and found.sinks.failed:
        raise cli.sinks_failed("not asked", found.sinks.failed)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    partition: Partition
    owner: str | None  # by the plan, or who holds it though no plan says so
    state: str  # "held", "opening", "leaving", "gone" (its owner is), or "free"
    stored: StoredOffset | None  # None: nothing is, or it cannot be read
    log: Log | None  # None: not known
    note: str = ""
    completed: int | None = None  # the last completed offset; None: no running service answered
    sinks: Mapping[str, Committed] = field(default_factory=dict)
    restart: Restart | None = None  # None: not known

    @property
    def committed(self) -> int | None:
        return self.stored.offset if self.stored else None

    @property
    def epoch(self) -> int | None:
        return self.stored.epoch if self.stored else None

    @property
    def lag(self) -> int | None:
        """Offsets from what is committed, or else the log's start, to the log's end."""
        if self.log is None:
            return None
        return self.log.end - (self.log.start if self.committed is None else self.committed)

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        """Transactions that are recorded, and not known to be in every sink."""
        stored = self.stored
        return stored.transactions.open if stored and stored.transactions else ()

    def sinks_with(self, txid: int) -> list[str]:
        return [name for name, found in self.sinks.items() if found.txid >= txid]

    def as_json(self) -> dict[str, Any]:
        stored, log = self.stored, self.log
        transactions = stored.transactions if stored else None
        return {
            "owner": self.owner,
            "state": self.state,
            "epoch": self.epoch,
            "committed": self.committed,
            "last_completed": self.completed,
            "log_start": log.start if log else None,
            "log_end": log.end if log else None,
            "lag": self.lag,
            "kind": transactions.kind if transactions else None,
            "committed_txid": committed_txid(stored),
            "open_txids": [each.txid for each in self.open],
            "open": [
                {
                    "txid": each.txid,
                    "attempt": each.attempt,
                    "first": each.range.first,
                    "end": each.range.end,
                    "state": "sealed" if each.range.is_sealed else "planned",
                    "records": each.range.count,
                    "digest": each.range.digest,
                    "sinks": self.sinks_with(each.txid),
                }
                for each in self.open
            ],
            "sinks": {
                name: {"epoch": each.epoch, "txid": each.txid} for name, each in self.sinks.items()
            },
            "restart": msgspec.to_builtins(self.restart),
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """A pipeline at about one moment."""

    pipeline: str
    path: str  # its nodes'
    members: Sequence[Member]  # by name
    plan: Plan | None
    control: Control
    changes: Sequence[OffsetChange]  # offsets moved by operators, the oldest first
    partitions: Sequence[PartitionRow]
    latency: Mapping[str, float | None]  # of a running service
    trouble: KafkaError | None  # why logs are not known
    sinks: OpenSinks | None  # None: they were not asked

    @property
    def leader(self) -> str | None:
        leader = leader_of(self.members)
        return None if leader is None else leader.name

    def as_json(self) -> dict[str, Any]:
        plan = self.plan
        facts = {
            "pipeline": self.pipeline,
            "place": self.path,
            "leader": self.leader,
            "plan": {"number": plan.number, "leader": plan.leader} if plan else None,
            **msgspec.to_builtins(self.control),
            "replicas": {
                each.name: {
                    "leads": each.name == self.leader,
                    "host": each.host,
                    "since_ms": each.since_ms,
                    "headrace": each.headrace,
                    "process": each.process,
                    "holds": len(each.holds),
                    "lag": total_lag(self.partitions, each),
                    "seen": each.seen,
                    "drained": each.name in self.control.drained,
                }
                for each in self.members
            },
            "lag": total_lag(self.partitions),
            "partitions": {str(each.partition): each.as_json() for each in self.partitions},
            "changes": msgspec.to_builtins(self.changes),
            "latency": self.latency,
            "trouble": cli.describe(self.trouble) if self.trouble else None,
        }
        if self.sinks is not None:
            facts |= {"reliability": self.sinks.reliability, "failed_sinks": self.sinks.failed}
        return facts


class ServiceAnswer(msgspec.Struct):
    """The figures that only a running service has."""

    last_completed: dict[str, int] = {}  # offsets, by partition
    latency: dict[str, float | None] = {}  # of the last 15 minutes


_NO_ANSWER = ServiceAnswer()


def ask_service(http_config: HttpConfig) -> ServiceAnswer:
    """Ask a running service for its figures; there are none if it does not answer in 2 s."""
    if not http_config.port:
        return _NO_ANSWER
    connection = http.client.HTTPConnection(
        http_config.host, http_config.port, timeout=_ASK_SECONDS
    )
    try:
        connection.request("GET", "/status.json")
        return msgspec.json.decode(connection.getresponse().read(), type=ServiceAnswer)
    except (OSError, http.client.HTTPException, msgspec.DecodeError, UnicodeDecodeError):
        return _NO_ANSWER  # no service, or another one
    finally:
        connection.close()


def read_status(
    pipeline: Parts,
    nodes: ReplicaNodes,
    service: ServiceAnswer = _NO_ANSWER,
    sinks: OpenSinks | None = None,
) -> Status:
    """Read all of it. Raises StoreUnavailable, StoreCorrupt of the replicas' nodes, StoreError.

    What Kafka does not say is left out, and reported as `trouble`; so is an offset that cannot be
    read, in its partition's note.
    """
    members, plan, control = nodes.members(), nodes.plan(), nodes.control()
    known = {each for member in members for each in member.holds}
    if plan is not None:
        known |= {*plan.owners, *plan.leaving}
    logs, trouble = _logs(pipeline)
    rows = []
    for partition in sorted(known | set(logs)):
        owner, state = owner_and_state(partition, plan, members)
        found = cli.stored_offset(pipeline.store, partition)
        stored, note = (None, cli.describe(found)) if isinstance(found, StoreError) else (found, "")
        log, completed = logs.get(partition), service.last_completed.get(str(partition))
        rows.append(PartitionRow(partition, owner, state, stored, log, note, completed))
    if sinks is not None:
        readable = [row.partition for row in rows if not row.note]
        compared = compare(readable, pipeline.store.load, sinks)
        rows = [
            replace(row, **compared[row.partition]._asdict()) if row.partition in compared else row
            for row in rows
        ]
    place, changes = (nodes.pipeline, nodes.path), nodes.changes()
    return Status(*place, members, plan, control, changes, rows, service.latency, trouble, sinks)


def owner_and_state(
    partition: Partition, plan: Plan | None, members: Sequence[Member]
) -> tuple[str | None, str]:
    """Return the partition's owner, and its `PartitionRow.state`."""
    holders = [each.name for each in members if partition in each.holds]
    owner = None if plan is None else plan.owners.get(partition)
    leaving = None if plan is None else plan.leaving.get(partition)
    if owner in holders:
        return owner, "held"
    names = {each.name for each in members}
    if leaving is not None and leaving.name in names:
        return leaving.name, "leaving"
    if holders:  # by no plan that is left
        return holders[0], "held"
    if owner is None:
        return None, "free"
    return owner, "opening" if owner in names else "gone"


def total_lag(rows: Iterable[PartitionRow], holder: Member | None = None) -> int | None:
    """Sum the lags, of one replica's partitions if asked; None if one is not known."""
    lags = [row.lag for row in rows if holder is None or row.partition in holder.holds]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


def _logs(pipeline: Parts) -> tuple[Mapping[Partition, Log | None], KafkaError | None]:
    """Return the logs of all partitions that the topology reads, and why some are not known."""
    try:
        topics = cli.topics_of(pipeline.topology.sources, pipeline.catalogue)
    except KafkaError as error:
        return {}, error
    # All at once: the catalogue asks for them together.
    asked = {each: pipeline.catalogue.log(each) for each in cli.partitions_of(topics.values())}
    logs: dict[Partition, Log | None] = {}
    trouble = None
    for partition, log in asked.items():
        try:
            logs[partition] = cli.answer(log)
        except KafkaError as error:
            logs[partition] = None
            trouble = trouble or error
    return logs, trouble


def follow(
    read: Callable[[], Status],
    interval_seconds: float,
    *,
    as_json: bool,
    console: Console | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> NoReturn:
    """Show what is read, every so many seconds, until a signal ends it.

    What cannot be read is shown in its place, and read again. A terminal shows the partitions
    that have room there. JSON, and a console that is no terminal, get one after the other.
    """
    console = console or cli.answers()
    on_terminal = console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if on_terminal else nullcontext() as live:
        while True:
            facts: dict[str, Any]
            picture: Group | Text
            try:
                found = read()
            except PartitionError as error:
                facts, picture = {"trouble": cli.describe(error)}, _line(cli.describe(error))
            else:
                most = max(_LEAST_ROWS, console.height - len(found.members) - _LINES_BESIDE)
                facts = found.as_json()
                picture = render_status(found, most if on_terminal else None)
            if live is not None:
                live.update(picture, refresh=True)
            elif as_json:
                cli.print_json(facts)
            else:
                console.print(picture)
            pause(interval_seconds)


def render_status(status: Status, most: int | None = None) -> Group:
    """Lay out the tables of replicas and partitions, with the lines that belong to them.

    Of `most` partitions: those that lag most, and those whose lag is not known.
    """
    rows, left_out = status.partitions, 0
    if most is not None and len(rows) > most:
        rows = sorted(rows, key=lambda row: -math.inf if row.lag is None else -row.lag)[:most]
        left_out = len(status.partitions) - most
    counts = f"replicas {len(status.members):,}, partitions {len(status.partitions):,}"
    lag = cli.cell(total_lag(status.partitions))
    head = [f"{status.pipeline}: {counts}, lag {lag}", *_latency_lines(status.latency)]
    head += control_lines(status.control)
    notes = [f"{left_out:,} partitions that lag less are not shown"] if left_out else []
    tables = [_replicas(status), _partitions(rows, status.sinks)]
    if status.sinks is not None and any(row.open for row in rows):
        tables.append(_open_transactions(rows))
    return Group(*map(_line, head), *tables, *map(_line, [*notes, *_notes(status)]))


def _latency_lines(latency: Mapping[str, float | None]) -> list[str]:
    titles = {"end_to_end": "time stamp to commit", "processing": "fetch to commit"}
    parts = [
        f"{title} {duration_text(median)} median, {duration_text(p99)} p99"
        for name, title in titles.items()
        if (median := latency.get(f"{name}_median_seconds")) is not None
        and (p99 := latency.get(f"{name}_p99_seconds")) is not None
    ]
    return [f"latency here in the last 15 minutes: {'; '.join(parts)}"] if parts else []


def _replicas(status: Status) -> Table:
    def named(member: Member) -> str:
        marks = ["leader"] * (member.name == status.leader)
        marks += ["drained"] * (member.name in status.control.drained)
        return f"{member.name} ({', '.join(marks)})" if marks else member.name

    columns = ("replica", "host", "since", ">holds", ">lag", ">plan", "headrace")
    rows = []
    for each in status.members:
        since, lag = f"{utc_text(each.since_ms)} UTC", total_lag(status.partitions, each)
        rows.append((named(each), each.host, since, len(each.holds), lag, each.seen, each.headrace))
    return cli.table_of(columns, rows, "Replicas")


def _partitions(rows: Sequence[PartitionRow], sinks: OpenSinks | None) -> Table:
    """Show transactions only if a partition has any, last completed offsets only if known."""
    knows_completed = any(row.completed is not None for row in rows)
    is_transactional = any(committed_txid(row.stored) is not None for row in rows)
    names = list(dict.fromkeys(name for row in rows for name in row.sinks))
    columns = ["partition", "replica", ">epoch", ">committed"]
    columns += [">completed"] if knows_completed else []
    columns += [">log start", ">log end", ">lag"]
    columns += [">txid", ">open"] if is_transactional else []
    columns += [*(f">{name}" for name in names), *(["a restart"] if sinks else [])]

    def cells(row: PartitionRow) -> Iterator[str | int | None]:
        owner = row.owner or "-"
        is_moving = row.state in ("opening", "leaving", "gone")
        yield from (str(row.partition), f"{owner} ({row.state})" if is_moving else owner)
        yield from (row.epoch, row.committed)
        if knows_completed:
            yield row.completed
        yield from (row.log.start, row.log.end, row.lag) if row.log else (None, None, None)
        if is_transactional:
            yield from (committed_txid(row.stored), len(row.open))
        yield from (row.sinks[name].txid if name in row.sinks else None for name in names)
        if sinks:
            yield str(row.restart) if row.restart else None

    return cli.table_of(columns, [list(cells(row)) for row in rows], "Partitions")


def _open_transactions(rows: Sequence[PartitionRow]) -> Table:
    columns = ("partition", ">txid", ">attempt", ">first", ">end", ">records", "is in")

    def cells(row: PartitionRow, each: OpenTransaction) -> Sequence[str | int | None]:
        first, end, count = each.range.first, each.range.end, each.range.count
        having = ", ".join(row.sinks_with(each.txid)) or ("no sink" if row.sinks else "-")
        held = count if each.range.is_sealed else "planned"
        return str(row.partition), each.txid, each.attempt, first, end, held, having

    opened = [cells(row, each) for row in rows for each in row.open]
    return cli.table_of(columns, opened, "Open transactions")


def _notes(status: Status) -> Iterator[str]:
    if status.plan is None:
        yield "there is no plan of who owns what yet"
    elif status.plan.leader != status.leader:
        yield f"plan {status.plan.number} was written by {status.plan.leader}"
    for row in status.partitions:
        if row.note:
            yield f"{row.partition}: {row.note}"
        if row.restart is not None and row.restart.halts is not None:
            yield row.restart.halts
    if status.sinks is not None:
        yield from _sink_notes(status.sinks, status.partitions)
    for each in list(status.changes)[-_CHANGES_SHOWN:]:
        moved = f"{each.partition} was moved from {cli.cell(each.before)} to {cli.cell(each.to)}"
        yield f"{moved} by {each.by}, {utc_text(each.at_ms)} UTC: {each.why}"
    if status.trouble is not None:
        yield cli.describe(status.trouble)


def _sink_notes(sinks: OpenSinks, rows: Sequence[PartitionRow]) -> Iterator[str]:
    if sinks.kind is None:
        yield f"the topology is {sinks.reliability}; no sink keeps transactions"
        if any(row.open for row in rows):
            yield "what is open is dropped by its next commit, and those rows may come twice"
        return
    for name, reason in sinks.failed.items():
        yield f"{name}: {reason}"
    if sinks.failed:
        yield "what a restart would do is known only when every sink answers"
    elif any(row.restart is None and not row.note for row in rows):
        yield "a service commits all the while; what a restart would do there is not known"


def _line(text: str) -> Text:
    return Text(text, overflow="fold")
