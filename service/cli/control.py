"""`headrace pause`, `resume`, `drain`, `rebalance`, and a pipeline's nodes in ZooKeeper.

A command changes the node `@control` and ends; the replicas read it with their next heartbeat, and
so do those that are started later. `@changes`, beside it, records which offsets operators have
moved, and why: a JSON list, the oldest first.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from partition.errors import StoreCorrupt
from partition.offsets.znode import said, shown
from partition.replicas import heartbeat
from partition.replicas.balance import Control, Member, Note, Plan
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.cli import common as cli
from service.config.settings import Config
from service.dead_letters.printable import utc_text

app = typer.Typer()

MAX_CHANGES = 100  # the newest


class OffsetChange(msgspec.Struct, frozen=True):
    """One partition's stored offset, moved by an operator."""

    at_ms: int  # since 1970
    by: str
    why: str
    partition: str
    before: int | None = msgspec.field(name="from")  # None: nothing was stored, or readable
    to: int


def decode_changes(path: str, data: bytes | None) -> list[OffsetChange]:
    """Decode the node's bytes; a missing or empty node has no changes. Raises StoreCorrupt."""
    if not data:
        return []
    try:
        return msgspec.json.decode(data, type=list[OffsetChange])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        needed = "a JSON list of what operators moved"
        raise StoreCorrupt(path, f"{said(error)} in {shown(data)}", needed) from error


class ReplicaNodes:
    """The nodes of one pipeline. Everything raises StoreUnavailable, StoreError, StoreCorrupt."""

    def __init__(self, nodes: ZooKeeperStore, root: str, pipeline: str) -> None:
        self._nodes = nodes
        self._root = root
        self.pipeline = pipeline
        self.path = f"{root.rstrip('/')}/{pipeline}"
        self.control_path = heartbeat.control_path(root, pipeline)
        self.changes_path = f"{self.path}/@changes"

    def members(self) -> list[Member]:
        """Return the registered replicas, by name."""
        found = []
        for name in sorted(
            self._nodes.children(heartbeat.replicas_path(self._root, self.pipeline)) or ()
        ):
            path = heartbeat.replica_path(self._root, self.pipeline, name)
            node = self._nodes.get(path)
            if node is not None:  # else it has just left
                found.append(heartbeat.decode_member(path, node.data, node.created))
        return found

    def plan(self) -> Plan | None:
        path = heartbeat.plan_path(self._root, self.pipeline)
        node = self._nodes.get(path)
        return None if node is None else heartbeat.decode_plan(path, node.data)

    def control(self) -> Control:
        node = self._nodes.get(self.control_path)
        return heartbeat.decode_control(self.control_path, node and node.data)

    def change_control(self, function: Callable[[Control], Control]) -> Control:
        """Change what operators ask for, and return it; see `ZooKeeperStore.change`."""
        path = self.control_path
        made = self._nodes.change(
            path,
            lambda data: heartbeat.encode_control(function(heartbeat.decode_control(path, data))),
        )
        return heartbeat.decode_control(path, made)

    def changes(self) -> list[OffsetChange]:
        """Return the newest changes of offsets by operators, the oldest of them first."""
        node = self._nodes.get(self.changes_path)
        return decode_changes(self.changes_path, node and node.data)

    def record(self, change: OffsetChange) -> None:
        def with_change(data: bytes | None) -> bytes:
            changes = decode_changes(self.changes_path, data)
            if change not in changes:  # the reply to an earlier try was lost
                changes.append(change)
            return msgspec.json.encode(changes[-MAX_CHANGES:])

        self._nodes.change(self.changes_path, with_change)


@contextmanager
def replica_nodes(config: Config, pipeline: str) -> Iterator[ReplicaNodes]:
    """Open a pipeline's nodes, in their own session. Raises StoreUnavailable, StoreError."""
    settings = config.zookeeper
    editor = ZooKeeperStore(
        settings.hosts,
        session_timeout_seconds=settings.session_timeout_seconds,
        kazoo_options=settings.security().kazoo_options(),
    )
    editor.open()
    try:
        yield ReplicaNodes(editor, settings.root, pipeline)
    finally:
        editor.close()


def control_lines(control: Control) -> Iterator[str]:
    """Yield what operators ask for, for a person, a line each."""
    yield f"paused {_by(control.paused)}" if control.paused else "not paused"
    for name, note in sorted(control.drained.items()):
        yield f"replica {name} is drained {_by(note)}"


@app.command()
def pause(
    target: cli.Target, why: cli.Why, config: cli.ConfigPath = None, *, as_json: cli.Json = False
) -> None:
    """Have all replicas finish and commit what they began, and begin no more.

    It stays so, also for replicas that are started later, until `headrace resume`.
    """
    note = cli.signed(why)  # who paused first, stays
    with _opened(target, config) as nodes:
        _change(nodes, lambda now: replace(now, paused=now.paused or note), as_json=as_json)


@app.command()
def resume(target: cli.Target, config: cli.ConfigPath = None, *, as_json: cli.Json = False) -> None:
    """Have paused replicas go on."""
    with _opened(target, config) as nodes:

        def resumed(now: Control) -> Control:
            return replace(now, paused=None, resumed=now.resumed + (now.paused is not None))

        _change(nodes, resumed, as_json=as_json)


@app.command()
def drain(
    target: cli.Target,
    replica: Annotated[
        str, typer.Argument(metavar="REPLICA", help="Its name, as `headrace status` shows it.")
    ],
    config: cli.ConfigPath = None,
    *,
    why: Annotated[str | None, cli.why_option] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it have partitions again; needs no --why.")
    ] = False,
    as_json: cli.Json = False,
) -> None:
    """Have one replica hand its partitions over, and give it none.

    It stays so, also when it is started anew, until `--undo`.
    """
    try:
        heartbeat.check_name(replica)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="REPLICA") from None
    if not undo and why is None:
        message = "it is needed, as others will read it; only --undo goes without"
        raise typer.BadParameter(message, param_hint="--why")
    note = cli.signed(why or "")

    def changed(now: Control) -> Control:
        others = {name: each for name, each in now.drained.items() if name != replica}
        if undo:
            return replace(now, drained=others)
        return replace(now, drained={replica: note, **now.drained})  # who drained first, stays

    with _opened(target, config) as nodes:
        if undo:
            _check_is_among(nodes.control().drained, replica, "drained")
        else:
            _check_is_among([each.name for each in nodes.members()], replica, "registered")
        _change(nodes, changed, as_json=as_json)


@app.command()
def rebalance(
    target: cli.Target, config: cli.ConfigPath = None, *, as_json: cli.Json = False
) -> None:
    """Have the partitions shared out anew, whoever has them now."""
    with _opened(target, config) as nodes:
        _change(nodes, lambda now: replace(now, rebalance=now.rebalance + 1), as_json=as_json)


def _opened(target: str, config: Path | None) -> AbstractContextManager[ReplicaNodes]:
    topology, settings = cli.load_topology(target), cli.configured(config)
    return replica_nodes(settings, settings.pipeline.name or topology.name)


def _change(nodes: ReplicaNodes, function: Callable[[Control], Control], *, as_json: bool) -> None:
    """Change what operators ask for; print what is in force now, and the replicas it is for."""
    control = nodes.change_control(function)
    names = [each.name for each in nodes.members()]
    if as_json:
        facts = {"pipeline": nodes.pipeline, "control": nodes.control_path, "replicas": names}
        cli.print_json({**facts, **msgspec.to_builtins(control)})
        return
    lines = [
        *control_lines(control),
        f"rebalances asked for: {control.rebalance}",
        f"registered replicas of {nodes.pipeline}: {', '.join(names) or 'none'}",
    ]
    cli.print_lines(lines)


def _check_is_among(names: Collection[str], name: str, what: str) -> None:
    if name not in names:
        message = f"no replica '{name}' is {what}; {what}: {', '.join(sorted(names)) or 'none'}"
        raise typer.BadParameter(message, param_hint="REPLICA")


def _by(note: Note) -> str:
    return f"by {note.by} since {utc_text(note.at_ms)} UTC: {note.why}"
