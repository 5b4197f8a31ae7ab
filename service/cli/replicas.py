"""`headrace status`, `pause`, `resume`, `drain` and `rebalance`: replicas, for operators.

A command that asks for something changes the node `@control` and ends; the replicas read it with
their next heartbeat, and so do those that are started later. `@changes`, beside it, keeps which
offsets operators have moved, and why: a JSON list, the oldest first.

The imports inside functions keep `headrace --help` quick.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from partition.errors import KafkaError, PartitionError, StoreCorrupt, StoreError
from partition.interfaces import Log, StoredOffset
from partition.offsets.znode import said, shown
from partition.records import Partition
from partition.replicas.heartbeat import (
    check_name,
    control_path,
    decode_control,
    decode_member,
    decode_plan,
    encode_control,
    plan_path,
    replica_path,
    replicas_path,
)
from partition.replicas.plan import Control, Member, Note, Plan, leader_of
from service.cli.common import (
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
    load_topology,
    moment,
    now_ms,
    opened_pipeline,
    partitions_of,
    print_json,
    print_lines,
    stored_offset,
    whoami,
    why_option,
)

if TYPE_CHECKING:  # slow to import
    from partition.zookeeper.zookeeper_store import ZooKeeperEditor
    from service.config.settings import Config
    from topology.topology import Topology

replicas_app = typer.Typer()

KEPT = 100  # the newest changes
_NEEDED = "a JSON list of what operators moved"
_CHANGES_SHOWN = 3
_LEAST_ROWS = 5
_LINES_BESIDE = 20  # frames, titles and notes


class Change(msgspec.Struct, frozen=True):
    """One partition's stored offset, moved by an operator."""

    at_ms: int  # since 1970
    by: str
    why: str
    partition: str
    before: int | None = msgspec.field(name="from")  # None: nothing was stored, or readable
    to: int


def changes_path(replicas_path: str) -> str:
    """Return the path of the node, from that of `@replicas` beside it."""
    return f"{replicas_path.rpartition('/')[0]}/@changes"


def decode_changes(path: str, data: bytes | None) -> list[Change]:
    """Read the node; one that is not there, or empty, tells of none. Raises StoreCorrupt."""
    if not data:
        return []
    try:
        return msgspec.json.decode(data, type=list[Change])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise StoreCorrupt(path, f"{said(error)} in {shown(data)}", _NEEDED) from error


def with_change(path: str, data: bytes | None, change: Change) -> bytes:
    """Return the node's bytes with one more change, unless it is there. Raises StoreCorrupt."""
    changes = decode_changes(path, data)
    if change not in changes:
        changes.append(change)
    return msgspec.json.encode(changes[-KEPT:])


class ReplicaNodes:
    """The nodes of one pipeline. Everything raises StoreUnavailable, StoreError, StoreCorrupt."""

    def __init__(self, nodes: "ZooKeeperEditor", root: str, pipeline: str) -> None:
        self._nodes = nodes
        self._root = root
        self.pipeline = pipeline
        self.place = f"{root.rstrip('/')}/{pipeline}"
        self.control_path = control_path(root, pipeline)
        self.changes_path = changes_path(replicas_path(root, pipeline))

    def members(self) -> list[Member]:
        """The replicas that are registered, in the order of their names."""
        found = []
        for name in sorted(self._nodes.children(replicas_path(self._root, self.pipeline)) or ()):
            path = replica_path(self._root, self.pipeline, name)
            node = self._nodes.get(path)
            if node is not None:  # else it has just left
                found.append(decode_member(path, node.data, node.created))
        return found

    def plan(self) -> Plan | None:
        """The newest plan; None if there was none yet."""
        path = plan_path(self._root, self.pipeline)
        node = self._nodes.get(path)
        return None if node is None else decode_plan(path, node.data)

    def control(self) -> Control:
        """What operators ask for."""
        node = self._nodes.get(self.control_path)
        return decode_control(self.control_path, node and node.data)

    def change_control(self, function: Callable[[Control], Control]) -> Control:
        """Change what operators ask for, and return it; see `ZooKeeperEditor.change`."""
        path = self.control_path
        made = self._nodes.change(
            path, lambda data: encode_control(function(decode_control(path, data)))
        )
        return decode_control(path, made)

    def changes(self) -> list[Change]:
        """The newest moves of offsets by operators, the oldest of them first."""
        node = self._nodes.get(self.changes_path)
        return decode_changes(self.changes_path, node and node.data)

    def record(self, change: Change) -> None:
        """Keep that an operator has moved an offset."""
        path = self.changes_path
        self._nodes.change(path, lambda data: with_change(path, data, change))


@contextmanager
def replica_nodes(topology: "Topology", config: "Config") -> Iterator[ReplicaNodes]:
    """Open a pipeline's nodes, in a session of their own. Raises StoreUnavailable, StoreError."""
    from partition.zookeeper.zookeeper_store import ZooKeeperEditor  # noqa: PLC0415 - see above

    settings = config.zookeeper
    editor = ZooKeeperEditor(
        settings.hosts,
        session_timeout_seconds=settings.session_timeout_seconds,
        kazoo_options=settings.security().kazoo_options(),
    )
    editor.open()
    try:
        yield ReplicaNodes(editor, settings.root, config.pipeline.name or topology.name)
    finally:
        editor.close()


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition: who has it, what is stored of it, and where its log is."""

    partition: Partition
    owner: str | None  # by the plan, or who holds it though no plan says so
    state: str  # "held", "opening", "leaving", "gone" (its owner is), or "free"
    stored: StoredOffset | None  # None: nothing is, or it cannot be read
    log: Log | None  # None: not known
    note: str = ""

    @property
    def lag(self) -> int | None:
        """Offsets from what is committed, or else the log's start, to the log's end."""
        if self.log is None:
            return None
        return self.log.end - (self.log.start if self.stored is None else self.stored.offset)

    @property
    def open_txids(self) -> list[int]:
        """Transactions that are recorded, and not known to be in every sink."""
        stored = self.stored
        opened = stored.transactions.open if stored and stored.transactions else ()
        return [each.txid for each in opened]

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        return {
            "owner": self.owner,
            "state": self.state,
            "epoch": self.stored.epoch if self.stored else None,
            "committed": self.stored.offset if self.stored else None,
            "log_start": self.log.start if self.log else None,
            "log_end": self.log.end if self.log else None,
            "lag": self.lag,
            "open_txids": self.open_txids,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """A pipeline at about one moment."""

    pipeline: str
    place: str  # its nodes' path
    members: Sequence[Member]  # by name
    plan: Plan | None
    control: Control
    changes: Sequence[Change]  # offsets moved by operators, the oldest first
    partitions: Sequence[PartitionRow]
    trouble: KafkaError | None = None  # why logs are not known

    @property
    def leader(self) -> str | None:
        """The replica that writes the plans."""
        leader = leader_of(self.members)
        return None if leader is None else leader.name

    @property
    def lag(self) -> int | None:
        """Of all partitions; None if one's is not known."""
        return total_lag(self.partitions)

    def lag_of(self, member: Member) -> int | None:
        """Of the partitions that a replica holds; None if one's is not known."""
        return total_lag([each for each in self.partitions if each.partition in member.holds])

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON takes it."""
        plan = self.plan
        return {
            "pipeline": self.pipeline,
            "place": self.place,
            "leader": self.leader,
            "plan": {"number": plan.number, "leader": plan.leader} if plan else None,
            **facts_of(self.control),
            "replicas": {each.name: self._facts(each) for each in self.members},
            "lag": self.lag,
            "partitions": {str(each.partition): each.as_json() for each in self.partitions},
            "changes": msgspec.to_builtins(self.changes),
            "trouble": describe(self.trouble) if self.trouble else None,
        }

    def _facts(self, member: Member) -> dict[str, Any]:
        return {
            "leads": member.name == self.leader,
            "host": member.host,
            "since_ms": member.since_ms,
            "headrace": member.headrace,
            "process": member.process,
            "holds": len(member.holds),
            "lag": self.lag_of(member),
            "seen": member.seen,
            "drained": member.name in self.control.drained,
        }


def read_status(pipeline: OpenPipeline, nodes: ReplicaNodes) -> Status:
    """Read all of it. Raises StoreUnavailable, StoreCorrupt of the replicas' nodes, StoreError.

    What Kafka does not say is left out, and told as `trouble`; so is an offset that cannot be
    read, in its partition's note.
    """
    members, plan, control = nodes.members(), nodes.plan(), nodes.control()
    known = {each for member in members for each in member.holds}
    if plan is not None:
        known |= {*plan.owners, *plan.leaving}
    logs, trouble = _logs(pipeline)
    rows = []
    for partition in sorted(known | set(logs)):
        owner, state = whose(partition, plan, members)
        found = stored_offset(pipeline.store, partition)
        stored, note = (None, describe(found)) if isinstance(found, StoreError) else (found, "")
        rows.append(PartitionRow(partition, owner, state, stored, logs.get(partition), note))
    return Status(
        nodes.pipeline, nodes.place, members, plan, control, nodes.changes(), rows, trouble
    )


def whose(
    partition: Partition, plan: Plan | None, members: Sequence[Member]
) -> tuple[str | None, str]:
    """Say whose a partition is, and which `PartitionRow.state` it is in."""
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


def total_lag(rows: Sequence[PartitionRow]) -> int | None:
    """The sum of lags; None if one is not known."""
    total = 0
    for row in rows:
        if row.lag is None:
            return None
        total += row.lag
    return total


def _logs(
    pipeline: OpenPipeline,
) -> tuple[Mapping[Partition, Log | None], KafkaError | None]:
    """The logs of all partitions that the topology reads, and why some are not known."""
    try:
        partitions = partitions_of(pipeline.topology, pipeline.catalogue)
    except KafkaError as error:
        return {}, error
    logs: dict[Partition, Log | None] = {}
    trouble = None
    # All at once: the catalogue asks for them together.
    asked = [(partition, pipeline.catalogue.log(partition)) for partition in partitions]
    for partition, log in asked:
        try:
            logs[partition] = answer(log)
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
    console = console or answers()
    on_terminal = console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if on_terminal else nullcontext() as live:
        while True:
            facts: dict[str, Any]
            picture: Group | Text
            try:
                found = read()
            except PartitionError as error:
                facts, picture = {"trouble": describe(error)}, _line(describe(error))
            else:
                most = max(_LEAST_ROWS, console.height - len(found.members) - _LINES_BESIDE)
                facts = found.as_json()
                picture = render_status(found, most if on_terminal else None)
            if live is not None:
                live.update(picture, refresh=True)
            elif as_json:
                print_json(facts)
            else:
                console.print(picture)
            pause(interval_seconds)


def render_status(status: Status, most: int | None = None) -> Group:
    """The tables of replicas and partitions, with the lines that belong to them.

    Of so many partitions at most: those that lag most, and those whose lag is not known.
    """
    rows, left_out = status.partitions, 0
    if most is not None and len(rows) > most:
        rows = sorted(rows, key=lambda row: -math.inf if row.lag is None else -row.lag)[:most]
        left_out = len(status.partitions) - most
    counts = f"replicas {len(status.members):,}, partitions {len(status.partitions):,}"
    head = [f"{status.pipeline}: {counts}, lag {cell(status.lag)}", *in_words(status.control)]
    notes = [f"{left_out:,} partitions that lag less are not shown"] if left_out else []
    notes += _notes(status)
    return Group(*map(_line, head), _replicas(status), _partitions(rows), *map(_line, notes))


def _replicas(status: Status) -> Table:
    table = Table(title="Replicas", title_justify="left")
    table.add_column("replica", overflow="fold")
    table.add_column("host", overflow="fold")
    table.add_column("since")
    for name in ("holds", "lag", "plan"):
        table.add_column(name, justify="right")
    table.add_column("headrace")
    for each in status.members:
        table.add_row(
            escape(_named(status, each)),
            escape(each.host),
            moment(each.since_ms),
            f"{len(each.holds):,}",
            cell(status.lag_of(each)),
            cell(each.seen),
            escape(each.headrace),
        )
    return table


def _partitions(rows: Iterable[PartitionRow]) -> Table:
    table = Table(title="Partitions", title_justify="left")
    table.add_column("partition", overflow="fold")
    table.add_column("replica", overflow="fold")
    for name in ("epoch", "committed", "log end", "lag", "open"):
        table.add_column(name, justify="right")
    for row in rows:
        stored = row.stored
        numbers = (
            stored.epoch if stored else None,
            stored.offset if stored else None,
            row.log.end if row.log else None,
            row.lag,
            len(row.open_txids),
        )
        table.add_row(escape(str(row.partition)), escape(_owner(row)), *map(cell, numbers))
    return table


def _notes(status: Status) -> Iterator[str]:
    if status.plan is None:
        yield "there is no plan of who owns what yet"
    elif status.plan.leader != status.leader:
        yield f"plan {status.plan.number} was written by {status.plan.leader}"
    for row in status.partitions:
        if row.note:
            yield f"{row.partition}: {row.note}"
    for each in list(status.changes)[-_CHANGES_SHOWN:]:
        moved = f"{each.partition} was moved from {cell(each.before)} to {cell(each.to)}"
        yield f"{moved} by {each.by}, {moment(each.at_ms)}: {each.why}"
    if status.trouble is not None:
        yield describe(status.trouble)


def _named(status: Status, member: Member) -> str:
    marks = [
        mark
        for mark, is_so in (
            ("leader", member.name == status.leader),
            ("drained", member.name in status.control.drained),
        )
        if is_so
    ]
    return f"{member.name} ({', '.join(marks)})" if marks else member.name


def _owner(row: PartitionRow) -> str:
    if row.owner is None:
        return "-"
    return row.owner if row.state == "held" else f"{row.owner} ({row.state})"


def _line(text: str) -> Text:
    return Text(text, overflow="fold")


def facts_of(control: Control) -> dict[str, Any]:
    """What is asked, as JSON takes it."""
    return {
        "paused": asdict(control.paused) if control.paused else None,
        "drained": {name: asdict(note) for name, note in sorted(control.drained.items())},
        "rebalance": control.rebalance,
    }


def in_words(control: Control) -> Iterator[str]:
    """What is asked, for a person, a line each."""
    yield f"paused {_by(control.paused)}" if control.paused else "not paused"
    for name, note in sorted(control.drained.items()):
        yield f"replica {name} is drained {_by(note)}"


@replicas_app.command()
def status(
    target: Target,
    config: ConfigPath = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="With --watch: so many seconds apart.")
    ] = 2.0,
    as_json: Json = False,
) -> None:
    """Show the replicas, who owns which partition, and what is committed of it.

    Everything is read from ZooKeeper and Kafka, so no replica needs to run.
    """
    topology, settings = load_topology(target), configured(config)
    try:
        with (
            opened_pipeline(topology, settings) as pipeline,
            replica_nodes(topology, settings) as nodes,
        ):
            if watch:
                follow(lambda: read_status(pipeline, nodes), interval, as_json=as_json)
            found = read_status(pipeline, nodes)
    except KeyboardInterrupt:
        if watch:
            return
        raise
    if as_json:
        print_json(found.as_json())
    else:
        answers().print(render_status(found))
    if found.trouble is not None:
        raise found.trouble  # after what is known


@replicas_app.command()
def pause(target: Target, why: Why, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Have all replicas finish and commit what they began, and begin nothing new.

    It stays so, also for replicas that are started later, until `headrace resume`.
    """
    note = Note(whoami(), why, now_ms())  # who paused first, stays
    with _nodes(target, config) as nodes:
        control = nodes.change_control(lambda now: replace(now, paused=now.paused or note))
        _show(nodes, control, as_json=as_json)


@replicas_app.command()
def resume(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Have paused replicas go on."""
    with _nodes(target, config) as nodes:
        control = nodes.change_control(lambda now: replace(now, paused=None))
        _show(nodes, control, as_json=as_json)


@replicas_app.command()
def drain(
    target: Target,
    replica: Annotated[
        str, typer.Argument(metavar="REPLICA", help="Its name, as `headrace status` shows it.")
    ],
    config: ConfigPath = None,
    *,
    why: Annotated[str | None, why_option] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it have partitions again; needs no --why.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Have one replica hand its partitions over to the others, and give it none.

    It stays so, also when it is started anew, until `--undo`.
    """
    try:
        check_name(replica)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="REPLICA") from None
    if not undo and why is None:
        message = "it is needed, as others will read it; only --undo goes without"
        raise typer.BadParameter(message, param_hint="--why")
    note = Note(whoami(), why or "", now_ms())

    def changed(now: Control) -> Control:
        drained = dict(now.drained)
        if undo:
            drained.pop(replica, None)
        else:
            drained.setdefault(replica, note)  # who drained first, stays
        return replace(now, drained=drained)

    with _nodes(target, config) as nodes:
        if undo:
            _check_is_among(nodes.control().drained, replica, "drained")
        else:
            _check_is_among([each.name for each in nodes.members()], replica, "registered")
        _show(nodes, nodes.change_control(changed), as_json=as_json)


@replicas_app.command()
def rebalance(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Have the partitions shared out anew, whoever has them now."""
    with _nodes(target, config) as nodes:
        control = nodes.change_control(lambda now: replace(now, rebalance=now.rebalance + 1))
        _show(nodes, control, as_json=as_json)


@contextmanager
def _nodes(target: str, config: ConfigPath) -> Iterator[ReplicaNodes]:
    topology = load_topology(target)
    with replica_nodes(topology, configured(config)) as nodes:
        yield nodes


def _show(nodes: ReplicaNodes, control: Control, *, as_json: bool) -> None:
    """Print all that is in force now, and whom it is for."""
    names = [each.name for each in nodes.members()]
    if as_json:
        facts = {"pipeline": nodes.pipeline, "control": nodes.control_path}
        print_json({**facts, **facts_of(control), "replicas": names})
        return
    lines = [
        *in_words(control),
        f"rebalances asked for: {control.rebalance}",
        f"registered replicas of {nodes.pipeline}: {', '.join(names) or 'none'}",
    ]
    print_lines(answers(), lines)


def _check_is_among(names: Collection[str], name: str, what: str) -> None:
    if name not in names:
        message = f"no replica '{name}' is {what}; {what}: {', '.join(sorted(names)) or 'none'}"
        raise typer.BadParameter(message, param_hint="REPLICA")


def _by(note: Note) -> str:
    return f"by {note.by} since {moment(note.at_ms)}: {note.why}"
