"""All mutants, and how one is killed."""

from dataclasses import dataclass

from tests.simulation import (
    departure_mutants,
    range_mutants,
    replica_mutants,
    session_mutants,
    spool_mutants,
    store_mutants,
    tracking_mutants,
    transaction_mutants,
)
from tests.simulation.handing_over import STEPS, Broken, live
from tests.simulation.mutants import MUTANTS, mutated
from tests.simulation.settings import Kind, kind_of
from tests.simulation.tape import LENGTH, Run, events, run

__all__ = [
    "MUTANTS",
    "Kill",
    "departure_mutants",
    "kill",
    "killer",
    "range_mutants",
    "replica_mutants",
    "session_mutants",
    "spool_mutants",
    "store_mutants",
    "tracking_mutants",
    "transaction_mutants",
]

_SEEDS = 400  # that may try, of those whose worlds a mutant can do harm in
_KINDS: dict[str, Kind] = {
    transaction_mutants.__name__: "by records",
    range_mutants.__name__: "by ranges",
    spool_mutants.__name__: "by ranges",
}


def killer(name: str, length: int = LENGTH, seeds: int = _SEEDS) -> tuple[Run | None, int]:
    """The first run that finds a mutant, and how many steps it took."""
    steps = 0
    concerns = _KINDS.get(MUTANTS[name].__module__, "by trees")
    for seed in range(seeds):
        if kind_of(seed) != concerns:
            continue
        with mutated(name):
            ended = run(seed, list(events(seed, length)))
        steps += ended.steps
        if ended.violation is not None:
            return ended, steps
    return None, steps


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of a mutant. `how` it was found, or None where it survived."""

    name: str
    how: str | None
    steps: int
    has_crashed: bool = False  # it raised what nobody raises: that proves no check of ours


def kill(name: str) -> Kill:
    """Look for a mutant, on seed after seed until one finds it."""
    if MUTANTS[name].__module__ == replica_mutants.__name__:
        return _kill_among_replicas(name)
    ended, steps = killer(name)
    if ended is None or ended.violation is None:
        return Kill(name, None, steps)
    how = f"seed {ended.seed}, {ended.violation}"
    return Kill(name, how, steps, has_crashed=ended.violation.promise == 0)


def _kill_among_replicas(name: str) -> Kill:
    """Look for one where members hand partitions over: no record is read there."""
    for seed in range(_SEEDS):
        try:
            with mutated(name):
                live(seed)
        except Broken as broken:
            return Kill(name, str(broken), (seed + 1) * STEPS)
    return Kill(name, None, _SEEDS * STEPS)
