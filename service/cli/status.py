"""`headrace status`: replicas and partitions for a person, once or again and again."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from partition.errors import PartitionError
from partition.replicas.plan import Member
from service.cli.control import in_words
from service.cli.lines import describe, print_json
from service.cli.loading import configured, load_topology
from service.cli.render import answers
from service.cli.replica_nodes import moment, replica_nodes
from service.cli.replicas import PartitionRow, Rooms, Status, read_status
from service.parts import wire

_CHANGES_SHOWN = 3
_LEAST_ROWS = 5
_LINES_BESIDE = 20  # frames, titles and notes


def status(
    target: str, config: Path | None, *, watch: bool, interval_seconds: float, as_json: bool
) -> None:
    """Print where everything stands; with `watch` until Ctrl-C.

    Raises what cannot be read: at once, or, if only Kafka does not answer, after what is known.
    """
    topology = load_topology(target)
    topology.validate()
    settings = configured(config)
    parts = wire(topology, settings)
    try:
        with ExitStack() as closing:
            for each in (parts.catalogue, parts.store):
                closing.callback(each.close)
                each.open()
            nodes = closing.enter_context(replica_nodes(topology, settings))
            rooms = Rooms(topology, nodes, parts.catalogue, parts.store)
            if watch:
                follow(lambda: read_status(rooms), interval_seconds, as_json=as_json)
            found = read_status(rooms)
    except KeyboardInterrupt:
        if watch:
            return
        raise
    if as_json:
        print_json(found.as_json())
    else:
        answers().print(shown(found))
    if found.trouble is not None:
        raise found.trouble  # after what is known


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
                picture = shown(found, most if on_terminal else None)
            if live is not None:
                live.update(picture, refresh=True)
            elif as_json:
                print_json(facts)
            else:
                console.print(picture)
            pause(interval_seconds)


def shown(status: Status, most: int | None = None) -> Group:
    """The tables of replicas and partitions, with the lines that belong to them.

    Of so many partitions at most: those that lag most, and those whose lag is not known.
    """
    rows, left_out = status.partitions, 0
    if most is not None and len(rows) > most:
        rows = sorted(rows, key=lambda row: -math.inf if row.lag is None else -row.lag)[:most]
        left_out = len(status.partitions) - most
    counts = f"replicas {len(status.members):,}, partitions {len(status.partitions):,}"
    head = [f"{status.pipeline}: {counts}, lag {_cell(status.lag)}", *in_words(status.control)]
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
            _cell(status.lag_of(each)),
            _cell(each.seen),
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
        table.add_row(escape(str(row.partition)), escape(_owner(row)), *map(_cell, numbers))
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
        moved = f"{each.partition} was moved from {_cell(each.before)} to {_cell(each.to)}"
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


def _cell(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
