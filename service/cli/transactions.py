"""Transactions of a topology that is exactly-once: what is open, and what each sink has committed.

Nothing is fenced and no row is written, so a service may run meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from partition.errors import TransactionError
from partition.interfaces import StoredOffset
from partition.records import Partition, Position, TransactionKind
from service.cli.common import describe
from service.wiring import Parts
from topology.sink import Committed
from transactions.transaction import resumed

_READINGS = 3  # of the store, until it stands still while the sinks are asked


@dataclass(slots=True)
class OpenSinks:
    """The sinks that can be asked for their last transactions, and those that failed, by name."""

    reliability: str
    kind: TransactionKind | None  # None: no sink keeps transactions
    ask: dict[str, Callable[[Sequence[str]], Sequence[Committed]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def committed(self, lines: Sequence[str]) -> dict[str, Sequence[Committed]]:
        """Ask each sink about the lines; `failed` names one that raises until it answers."""
        found: dict[str, Sequence[Committed]] = {}
        for name, ask in self.ask.items():
            self.failed.pop(name, None)
            try:
                found[name] = ask(lines)
            except Exception as error:  # noqa: BLE001 - the others, and what is stored, are shown
                self.failed[name] = describe(error)
        return found


@contextmanager
def opened_sinks(parts: Parts) -> Iterator[OpenSinks]:
    """Open the sinks of a topology that is exactly-once, as a run would; some may fail."""
    topology = parts.topology
    is_exact = topology.reliability == "exactly-once"
    found = OpenSinks(topology.reliability, topology.transactions if is_exact else None)
    with ExitStack() as closing:
        if parts.spark is not None:
            closing.callback(parts.spark.close)
        for step in parts.topology.sink_steps() if is_exact else ():
            closing.callback(step.sink.close)
            try:
                step.sink.open(parts.context(step.name))
                found.ask[step.name] = step.sink.committed
            except Exception as error:  # noqa: BLE001 - the others, and what is stored, are shown
                found.failed[step.name] = describe(error)
        yield found


@dataclass(frozen=True, slots=True)
class Restart:
    """The plan of a process that starts now. An open transaction is in one of the three."""

    done: tuple[int, ...] = ()  # txids that every sink has: the offset moves behind them
    replayed: tuple[int, ...] = ()  # read again, with the same records
    anew: tuple[int, ...] = ()  # read again, perhaps with others: opaque
    halts: str | None = None  # why the partition would not be read at all

    def __str__(self) -> str:
        if self.halts is not None:
            return "halts"
        parts = (("finds done", self.done), ("replays", self.replayed), ("reads anew", self.anew))
        said = [f"{what} {', '.join(map(str, txids))}" for what, txids in parts if txids]
        return "; ".join(said) or "goes on"


class Compared(NamedTuple):
    stored: StoredOffset | None
    sinks: Mapping[str, Committed]
    restart: Restart | None  # None: not known


def compare(
    partitions: Sequence[Partition],
    load: Callable[[Partition], StoredOffset | None],
    sinks: OpenSinks,
) -> dict[Partition, Compared]:
    """Put what the sinks have beside what is stored, and what a restart would do.

    A service may commit meanwhile. So the store is read before the sinks are asked and after it:
    if its last txid is the same, they were asked while it stood. Where it moves on at each of
    three readings, what a restart would do is not said; nor is it when a sink cannot be asked.
    Raises what `load` raises.
    """
    found: dict[Partition, Compared] = {}
    left = list(partitions)
    for reading in range(_READINGS):
        before = [committed_txid(load(each)) for each in left]
        said = sinks.committed([str(each) for each in left])
        moving = []
        for at, each in enumerate(left):
            stored = load(each)
            is_steady = before[at] == committed_txid(stored)
            if not is_steady and reading < _READINGS - 1:
                moving.append(each)
                continue
            committed = {name: lines[at] for name, lines in said.items()}
            restart = None
            if sinks.kind is not None and is_steady and not sinks.failed:
                restart = restart_of(each, stored, committed, sinks.kind)
            found[each] = Compared(stored, committed, restart)
        left = moving
    return found


def restart_of(
    partition: Partition,
    stored: StoredOffset | None,
    sinks: Mapping[str, Committed],
    kind: TransactionKind,
) -> Restart:
    """Decide about a partition's open transactions as the next start will.

    Except for the log: whether it still holds the records is seen when they are read.
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


def committed_txid(stored: StoredOffset | None) -> int | None:
    """Return the last txid that every sink is known to have; None: no transaction is stored."""
    return stored.transactions.committed if stored and stored.transactions else None
