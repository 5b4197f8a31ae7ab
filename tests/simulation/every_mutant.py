"""All mutants, and how one is killed."""

from tests.simulation import store_mutants, tracking_mutants
from tests.simulation.mutants import MUTANTS, mutated
from tests.simulation.tape import LENGTH, Run, events, run

__all__ = ["MUTANTS", "kill", "killer", "store_mutants", "tracking_mutants"]

_SEEDS = 80  # that may try


def killer(name: str, length: int = LENGTH, seeds: int = _SEEDS) -> tuple[Run | None, int]:
    """The first run that finds a mutant, and how many steps it took."""
    steps = 0
    for seed in range(seeds):
        with mutated(name):
            ended = run(seed, list(events(seed, length)))
        steps += ended.steps
        if ended.violation is not None:
            return ended, steps
    return None, steps


def kill(name: str) -> tuple[str, str | None, int]:
    """A mutant's name, how it was found, and after how many steps."""
    ended, steps = killer(name)
    return name, None if ended is None else f"seed {ended.seed}, {ended.violation}", steps
