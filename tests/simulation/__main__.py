"""`python -m tests.simulation`: many seeds, then every mutant. See docs/how-to/simulate.md."""
# ruff: noqa: T201 - it tells people what it finds

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.every_mutant import MUTANTS, kill
from tests.simulation.mutants import mutated
from tests.simulation.settings import REQUIRED
from tests.simulation.tape import LENGTH, SHRINK_SECONDS, events, run, run_seed, shrink, trace

STEPS = 1_000_000
_WORKERS = 2
_SHOWN = 3  # violations that are shrunk


def main(arguments=None):
    """Run what the arguments say; 1 if a promise was broken or the run proves too little."""
    asked = _arguments(arguments)
    if asked.seed is not None:
        return _replay(asked)
    started = time.perf_counter()
    seeds = range(asked.first_seed, asked.first_seed + (asked.seeds or asked.steps // LENGTH))
    names = [asked.mutant] if asked.mutant else sorted(MUTANTS) if asked.mutants else []
    workers = min(_WORKERS, os.cpu_count() or 1)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        ended = pool.imap_unordered(run_seed, [] if asked.mutant else seeds, chunksize=4)
        steps, broken, situations = _gather(ended, started)
        killed, crashed = _kill(pool.imap_unordered(kill, names)) if names else ([], [])
    for name, seed in sorted((broken or {}).items(), key=lambda item: item[1])[:_SHOWN]:
        _explain(seed, name, asked.shrink_seconds)
    full = not asked.mutant and steps >= STEPS
    unvisited = [name for name in REQUIRED if not situations[name]] if full else []
    for name in unvisited:
        print(f"never visited: {name} ({REQUIRED[name]})")
    survivors = sorted(set(names) - set(killed) - set(crashed))
    for name in survivors:
        print(f"survived: {name} ({(MUTANTS[name].__doc__ or '').strip()})")
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "steps": steps,
                "seeds": 0 if asked.mutant else len(seeds),
                "violations": len(broken),
                "mutants": len(names),
                "killed": len(killed),
                "crashed": len(crashed),
                "situations": {name: situations[name] for name in sorted(REQUIRED)},
                "steps_per_second": round(steps / seconds),
            }
        )
    )
    return 1 if broken or survivors or crashed or unvisited else 0


def _arguments(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="at least so many steps")
    parser.add_argument("--seeds", type=int, help="so many seeds instead")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="run this one seed alone")
    parser.add_argument("--tape", type=Path, help="with --seed: a tape (JSON), not the seed's own")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell every event")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="this mutant alone")
    parser.add_argument("--no-mutants", dest="mutants", action="store_false")
    parser.add_argument("--shrink-seconds", type=float, default=SHRINK_SECONDS)
    return parser.parse_args(arguments)


def _gather(ended, started):
    steps, said = 0, started
    broken = {}
    situations = Counter()
    for one in ended:
        steps += one.steps
        situations.update(one.situations)
        if one.violation is not None:
            print(f"seed {one.seed}, step {one.at}: {one.violation}", flush=True)
            broken[f"seed {one.seed}"] = one.seed
        if time.perf_counter() - said > 10:
            said = time.perf_counter()
            print(f"{steps:,} steps, {len(broken)} violations", flush=True)
    return steps, broken, situations


def _kill(ended):
    """The mutants that a check found; and those that only crashed, which proves nothing."""
    killed = []
    crashed = []
    for one in ended:
        if one.how is None:
            continue
        word = "crashed, and so not killed:" if one.has_crashed else "killed"
        print(f"{word} {one.name} after {one.steps:,} steps: {one.how}", flush=True)
        (crashed if one.has_crashed else killed).append(one.name)
    return killed, crashed


def _explain(seed, name, seconds):
    ended = run_seed(seed)
    if ended.violation is None:
        print(f"{name} fails only together with others: the run is not deterministic")
        return
    tape = list(events(seed, LENGTH))
    shrunk = shrink(seed, tape, ended.violation, at=ended.at, seconds=seconds)
    print(f"\n{name}, {shrunk}; the tape:")
    print(json.dumps(shrunk.tape))
    trace(seed, shrunk.tape)


def _replay(asked):
    tape = list(events(asked.seed, LENGTH))
    if asked.tape:
        tape = [tuple(event) for event in json.loads(asked.tape.read_text())]
    with mutated(asked.mutant):
        if asked.trace:
            trace(asked.seed, tape)
        ended = run(asked.seed, tape)
        print(f"seed {asked.seed}: {ended.steps} steps, state {ended.state:08x}")
        if ended.violation is None:
            return 0
        print(f"step {ended.at}: {ended.violation}")
        if not asked.tape:
            shrunk = shrink(
                asked.seed, tape, ended.violation, at=ended.at, seconds=asked.shrink_seconds
            )
            print(f"{shrunk}:")
            print(json.dumps(shrunk.tape))
    return 1


if __name__ == "__main__":
    sys.exit(main())
