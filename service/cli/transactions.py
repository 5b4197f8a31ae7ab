"""`headrace transactions show`: what is open, what each sink has, and what a restart would do.

Nothing is fenced and no row is written, so a service may run meanwhile.

The imports inside functions keep `headrace --help` quick.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from partition.errors import TransactionError
from partition.interfaces import StoredOffset
from partition.records import OpenTransaction, Partition, Position, TransactionKind
from service.cli.common import (
    ConfigPath,
    Json,
    Target,
    answers,
    cell,
    configured,
    describe,
    load_topology,
    partitions_of,
    print_json,
    print_lines,
)
from service.errors import SinksFailed
from transactions.transaction import resumed

if TYPE_CHECKING:  # slow to import
    from service.config.settings import Config
    from topology.sink import Committed
    from topology.topology import Topology

transactions_app = typer.Typer(
    help="What is open and what is committed, of a topology that is exactly-once.",
    no_args_is_help=True,
)

_READINGS = 3  # of the store, until it stands still while the sinks are asked

Ask = Callable[[Sequence[str]], "Sequence[Committed]"]
Load = Callable[[Partition], StoredOffset | None]


@dataclass(frozen=True, slots=True)
class Restart:
    """What a process would do that started now. An open transaction is in one of the three."""

    done: tuple[int, ...] = ()  # txids that every sink has: the offset moves behind them
    replayed: tuple[int, ...] = ()  # read again, with the same records
    anew: tuple[int, ...] = ()  # read again, perhaps with others: opaque
    halts: str | None = None  # why the partition would not be read at all

    def as_json(self) -> dict[str, Any]:
        """The facts as JSON takes them."""
        return {
            "done": list(self.done),
            "replayed": list(self.replayed),
            "anew": list(self.anew),
            "halts": self.halts,
        }

    def in_words(self) -> str:
        """The same for a person, but for the reason."""
        if self.halts is not None:
            return "halts"
        parts = [
            f"{what} {', '.join(map(str, txids))}"
            for what, txids in (
                ("finds done", self.done),
                ("replays", self.replayed),
                ("reads anew", self.anew),
            )
            if txids
        ]
        return "; ".join(parts) or "goes on"


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition: what is stored of it, and what the sinks that could be asked have."""

    partition: Partition
    stored: StoredOffset | None  # None: nothing is
    sinks: "Mapping[str, Committed]"
    restart: Restart | None  # None: not known

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        """The open transactions, in the order of their txids."""
        stored = self.stored
        return stored.transactions.open if stored and stored.transactions else ()

    @property
    def committed(self) -> int | None:
        """The last txid that is known to be in every sink; None: no transaction is stored."""
        return _txid(self.stored)

    def having(self, txid: int) -> list[str]:
        """The sinks that have committed a transaction."""
        return [name for name, found in self.sinks.items() if found.txid >= txid]

    def as_json(self) -> dict[str, Any]:
        """The facts as JSON takes them."""
        stored = self.stored
        transactions = stored.transactions if stored else None
        return {
            "offset": stored.offset if stored else None,
            "epoch": stored.epoch if stored else None,
            "kind": transactions.kind if transactions else None,
            "committed": self.committed,
            "open": [
                {
                    "txid": each.txid,
                    "attempt": each.attempt,
                    "first": each.range.first,
                    "end": each.range.end,
                    "state": "sealed" if each.range.is_sealed else "planned",
                    "records": each.range.count,
                    "digest": each.range.digest,
                    "sinks": self.having(each.txid),
                }
                for each in self.open
            ],
            "sinks": {
                name: {"epoch": found.epoch, "txid": found.txid}
                for name, found in self.sinks.items()
            },
            "restart": self.restart.as_json() if self.restart else None,
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """Every partition, in order, and the sinks that could not be asked, with the reason."""

    standings: Sequence[Standing]
    failed: Mapping[str, str]


def compare(
    partitions: Iterable[Partition],
    load: Load,
    asked: Mapping[str, Ask],
    failed: Mapping[str, str],
    kind: TransactionKind | None,
) -> Compared:
    """Put what is stored beside what the sinks have; `kind` is None if none keeps transactions.

    A service may commit meanwhile. So the store is read before the sinks are asked and after it:
    if its last txid is the same, they were asked while it stood. Where it moves on at each of
    three readings, what a restart would do is not said; nor is it when a sink cannot be asked.
    Raises what `load` raises.
    """
    asked, failed = dict(asked), dict(failed)
    found: dict[Partition, Standing] = {}
    left = every = list(partitions)
    for reading in range(_READINGS):
        before = {each: load(each) for each in left}
        said = _answers(asked, failed, [str(each) for each in left])
        moving = []
        for at, each in enumerate(left):
            stored = load(each)
            is_steady = _txid(before[each]) == _txid(stored)
            if not is_steady and reading < _READINGS - 1:
                moving.append(each)
                continue
            sinks = {name: committed[at] for name, committed in said.items()}
            restart = None
            if kind is not None and is_steady and not failed:
                restart = restart_of(each, stored, sinks, kind)
            found[each] = Standing(each, stored, sinks, restart)
        left = moving
        if not left:
            break
    return Compared([found[each] for each in every], failed)


def restart_of(
    partition: Partition,
    stored: StoredOffset | None,
    sinks: "Mapping[str, Committed]",
    kind: TransactionKind,
) -> Restart:
    """What becomes of a partition's open transactions at the next start, as it is decided there.

    But for the log: whether it still holds the records is seen when they are read.
    """
    known = stored or StoredOffset(Position(0), "")
    for name, found in sinks.items():
        if found.epoch > known.epoch + 1:  # which the next owner has
            return Restart(
                halts=f"{partition}: sink '{name}' has had an owner under epoch {found.epoch}, the "
                f"offset store knows up to {known.epoch}; offsets were put back or removed"
            )
    try:
        goes_on = resumed(
            partition, known, {name: found.txid for name, found in sinks.items()}, kind
        )
    except TransactionError as error:
        return Restart(halts=describe(error))
    still = goes_on.transactions
    before = known.transactions.open if known.transactions else ()
    return Restart(
        done=tuple(each.txid for each in before if each.txid <= still.committed),
        replayed=tuple(each.txid for each in still.open),
        anew=tuple(sorted(goes_on.attempts)),
    )


def _answers(
    asked: dict[str, Ask], failed: dict[str, str], lines: Sequence[str]
) -> "dict[str, Sequence[Committed]]":
    """What each sink says of the lines; one that raises is moved to `failed`."""
    said: dict[str, Sequence[Committed]] = {}
    for name, ask in list(asked.items()):
        try:
            said[name] = ask(lines)
        except Exception as error:  # noqa: BLE001 - the others, and what is stored, are shown
            failed[name] = describe(error)
            del asked[name]
    return said


def _txid(stored: StoredOffset | None) -> int | None:
    return stored.transactions.committed if stored and stored.transactions else None


@transactions_app.command("show")
def transactions_show(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Show what is open, what each sink has committed, and what a restart would read again.

    Sinks are opened as a run would open them, so empty tables and topics may be created.
    """
    topology = load_topology(target)
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


def read_standings(topology: "Topology", config: "Config") -> Compared:
    """Read ZooKeeper and, if the topology is exactly-once, ask the sinks; some may fail."""
    from service.wiring import wire  # noqa: PLC0415 - see above

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
                step.sink.open(parts.context(step.name))
                asked[step.name] = step.sink.committed
            except Exception as error:  # noqa: BLE001 - the others, and what is stored, are shown
                failed[step.name] = describe(error)
        return compare(partitions, parts.store.load, asked, failed, kind)


def show_standings(console: Console, topology: "Topology", found: Compared) -> None:
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
        table.add_row(escape(str(each.partition)), *map(cell, numbers), words)
    console.print(table)
    if any(each.open for each in found.standings):
        console.print(_open_table(found.standings))
    print_lines(console, _notes(topology, found))


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
            records = cell(covers.count) if covers.is_sealed else "planned"
            having = ", ".join(each.having(one.txid)) or ("no sink" if each.sinks else "-")
            table.add_row(escape(str(each.partition)), *map(cell, numbers), records, escape(having))
    return table


def _notes(topology: "Topology", found: Compared) -> Iterator[str]:
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
