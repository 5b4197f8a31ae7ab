"""All mutants, and how one is killed."""

from dataclasses import dataclass

from tests.simulation import (
    range_mutants,
    replica_mutants,
    store_mutants,
    tracking_mutants,
    transaction_mutants,
)
from tests.simulation.handing_over import STEPS, Broken, live
from tests.simulation.mutants import MUTANTS, mutated
from tests.simulation.settings import kind_of
from tests.simulation.tape import LENGTH, events, run

__all__ = [
    "MUTANTS",
    "Kill",
    "kill",
    "killer",
    "range_mutants",
    "replica_mutants",
    "store_mutants",
    "tracking_mutants",
    "transaction_mutants",
]

_SEEDS = 400  # that may try, of those whose worlds a mutant can do harm in
_KINDS = {
    transaction_mutants.__name__: "by records",
    range_mutants.__name__: "by ranges",
}


def killer(name, length=LENGTH, seeds=_SEEDS):
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


def kill(name):
    if MUTANTS[name].__module__ == replica_mutants.__name__:
        return _kill_among_replicas(name)
    ended, steps = killer(name)
    if ended is None or ended.violation is None:
        return Kill(name, None, steps)
    how = f"seed {ended.seed}, {ended.violation}"
    return Kill(name, how, steps, has_crashed=ended.violation.promise == 0)


def _kill_among_replicas(name):
    """Look for one where members hand partitions over: no record is read there."""
    for seed in range(_SEEDS):
        try:
            with mutated(name):
                live(seed)
        except Broken as broken:
            return Kill(name, str(broken), (seed + 1) * STEPS)
    return Kill(name, None, _SEEDS * STEPS)
