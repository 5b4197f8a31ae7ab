"""`headrace transactions show`: what is open, what each sink has, and what a restart would do.

Nothing is fenced and no row is written, so a service may run meanwhile.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.cli.lines import describe, print_json
from service.cli.loading import configured, load_topology
from service.cli.render import answers
from service.cli.standing import Ask, Compared, Standing, compare
from service.cli.topics import partitions_of
from service.config import Config
from service.errors import SinksFailed
from service.parts import Parts, wire
from topology.sink import Sink
from topology.steps import SinkStep
from topology.topology import Topology


def show(target: str, config: Path | None, *, as_json: bool) -> None:
    """Print where the transactions of every partition stand. Raises SinksFailed."""
    topology = load_topology(target)
    topology.validate()
    found = read_standings(topology, configured(config))
    if as_json:
        print_json(
            {
                "reliability": topology.reliability,
                "failed_sinks": dict(found.failed),
                "partitions": {str(each.partition): each.as_json() for each in found.standings},
            }
        )
    else:
        show_standings(answers(), topology, found)
    if found.failed:
        raise SinksFailed("not asked", list(found.failed))


def read_standings(topology: Topology, config: Config) -> Compared:
    """Read ZooKeeper and, if the topology is exactly-once, ask the sinks; a bad one by itself."""
    parts = wire(topology, config)
    kind = topology.transactions if topology.reliability == "exactly-once" else None
    with ExitStack() as closing:
        if parts.spark is not None:
            closing.callback(parts.spark.close)
        for each in (parts.catalogue, parts.store):
            closing.callback(each.close)
            each.open()
        partitions = partitions_of(topology, parts.catalogue)
        asked: dict[str, Ask] = {}
        failed: dict[str, str] = {}
        for step in parts.sinks if kind else ():
            closing.callback(step.sink.close)
            try:
                asked[step.name] = _opened(parts, step)
            except Exception as error:  # noqa: BLE001 - the others, and what is stored, are shown
                failed[step.name] = describe(error)
        return compare(partitions, parts.store.load, asked, failed, kind)


def show_standings(console: Console, topology: Topology, found: Compared) -> None:
    """Print a table of the partitions, one of what is open, and what needs more words."""
    names = list(dict.fromkeys(name for each in found.standings for name in each.sinks))
    table = Table(title="Partitions", title_justify="left")
    table.add_column("partition", overflow="fold")
    for name in ("offset", "committed", "open", *map(escape, names)):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("a restart")
    for each in found.standings:
        numbers = [
            each.stored.offset if each.stored else None,
            each.committed,
            len(each.open),
            *(each.sinks[name].txid if name in each.sinks else None for name in names),
        ]
        words = each.restart.in_words() if each.restart else "-"
        table.add_row(escape(str(each.partition)), *map(_cell, numbers), words)
    console.print(table)
    if any(each.open for each in found.standings):
        console.print(_open_table(found.standings))
    for line in _notes(topology, found):
        console.print(escape(line), soft_wrap=True, highlight=False)


def _open_table(standings: Sequence[Standing]) -> Table:
    table = Table(title="Open transactions", title_justify="left")
    table.add_column("partition", overflow="fold")
    for name in ("txid", "attempt", "first", "end", "records"):
        table.add_column(name, justify="right")
    table.add_column("is in", overflow="fold")
    for each in standings:
        for one in each.open:
            covers = one.range
            numbers = (one.txid, one.attempt, covers.first, covers.end)
            records = _cell(covers.count) if covers.is_sealed else "planned"
            having = ", ".join(each.having(one.txid)) or ("no sink" if each.sinks else "-")
            table.add_row(
                escape(str(each.partition)), *map(_cell, numbers), records, escape(having)
            )
    return table


def _notes(topology: Topology, found: Compared) -> Iterator[str]:
    if topology.reliability != "exactly-once":
        yield f"topology '{topology.name}' is {topology.reliability}; no sink keeps transactions"
        if any(each.open for each in found.standings):
            yield "what is open is dropped by its next commit, and those rows may come twice"
        return
    for name, reason in found.failed.items():
        yield f"{name}: {reason}"
    if found.failed:
        yield "what a restart would do is known only when every sink answers"
    elif any(each.restart is None for each in found.standings):
        yield "a service commits all the while; what a restart would do there is not known"
    for each in found.standings:
        if each.restart is not None and each.restart.halts is not None:
            yield each.restart.halts


def _opened(parts: Parts, step: SinkStep) -> Ask:
    sink = step.sink
    if not isinstance(sink, Sink):
        raise TypeError(step.name)  # validate() has seen to that
    sink.open(parts.context(step.name))
    return sink.committed


def _cell(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
