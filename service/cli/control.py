"""`headrace pause`, `resume`, `drain` and `rebalance`: what operators ask of replicas.

Each changes the node `@control` and ends; the replicas read it with their next heartbeat, and
those that are started later find it, too.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from partition.replicas.heartbeat import check_name
from partition.replicas.plan import Control, Note
from service.cli.lines import print_json
from service.cli.loading import configured, load_topology
from service.cli.render import answers
from service.cli.replica_nodes import ReplicaNodes, moment, now_ms, replica_nodes, whoami


def pause(target: str, config: Path | None, why: str, *, as_json: bool) -> None:
    """Have all replicas finish what they began, and begin nothing. Who paused first, stays."""
    note = Note(whoami(), why, now_ms())
    with _nodes(target, config) as nodes:
        control = nodes.change_control(lambda now: replace(now, paused=now.paused or note))
        _show(nodes, control, as_json=as_json)


def resume(target: str, config: Path | None, *, as_json: bool) -> None:
    """Have them go on. Nothing changes if they are not paused."""
    with _nodes(target, config) as nodes:
        control = nodes.change_control(lambda now: replace(now, paused=None))
        _show(nodes, control, as_json=as_json)


def rebalance(target: str, config: Path | None, *, as_json: bool) -> None:
    """Have the leader share the partitions out anew, whoever has them now."""
    with _nodes(target, config) as nodes:
        control = nodes.change_control(lambda now: replace(now, rebalance=now.rebalance + 1))
        _show(nodes, control, as_json=as_json)


def drain(
    target: str, config: Path | None, name: str, why: str | None, *, undo: bool, as_json: bool
) -> None:
    """Take every partition from a replica, and give it none; or `undo` that.

    Raises typer.BadParameter, which names those that are allowed: none of that name is
    registered, or it is not drained. Who drained first, stays.
    """
    try:
        check_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="REPLICA") from None
    if not undo and why is None:
        message = "it is needed, as others will read it; only --undo goes without"
        raise typer.BadParameter(message, param_hint="--why")
    note = None if undo else Note(whoami(), why or "", now_ms())
    with _nodes(target, config) as nodes:
        if undo:
            _check_is_among(nodes.control().drained, name, "drained")
        else:
            _check_is_among([each.name for each in nodes.members()], name, "registered")
        control = nodes.change_control(lambda now: with_drained(now, name, note))
        _show(nodes, control, as_json=as_json)


def with_drained(control: Control, name: str, note: Note | None) -> Control:
    """Return what is asked with one replica drained, unless it is; or, with None, not drained."""
    drained = dict(control.drained)
    if note is None:
        drained.pop(name, None)
    else:
        drained.setdefault(name, note)
    return replace(control, drained=drained)


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


@contextmanager
def _nodes(target: str, config: Path | None) -> Iterator[ReplicaNodes]:
    topology = load_topology(target)
    topology.validate()
    with replica_nodes(topology, configured(config)) as nodes:
        yield nodes


def _show(nodes: ReplicaNodes, control: Control, *, as_json: bool) -> None:
    """Print all that is in force now, and whom it is for."""
    names = [each.name for each in nodes.members()]
    if as_json:
        facts = {"pipeline": nodes.pipeline, "control": nodes.control_path}
        print_json({**facts, **facts_of(control), "replicas": names})
        return
    console = answers()
    for line in (
        *in_words(control),
        f"rebalances asked for: {control.rebalance}",
        f"registered replicas of {nodes.pipeline}: {', '.join(names) or 'none'}",
    ):
        console.print(escape(line), soft_wrap=True, highlight=False)


def _check_is_among(names: Collection[str], name: str, what: str) -> None:
    if name not in names:
        message = f"no replica '{name}' is {what}; {what}: {', '.join(sorted(names)) or 'none'}"
        raise typer.BadParameter(message, param_hint="REPLICA")


def _by(note: Note) -> str:
    return f"by {note.by} since {moment(note.at_ms)}: {note.why}"
