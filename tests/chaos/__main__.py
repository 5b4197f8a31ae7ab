"""`make chaos`: replicas come and go at random under load; see docs/reliability.md."""
# ruff: noqa: T201 - it tells people what it finds

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from random import Random
from typing import cast

import pytest

from tests.acceptance.replicas import Output, Replicas
from tests.chaos.chaos import SESSION_SECONDS, Chaos
from tests.chaos.soak import Soak
from tests.faults.judge import Outcome
from tests.faults.servers import Servers, started

TOPOLOGIES = "tests.faults.topologies"
TOPICS: Mapping[str, int] = {"in-a": 7, "in-b": 5}
OUTPUTS: tuple[Output, ...] = ("messages", "lines")
STEADY: tuple[Output, ...] = ("lines",)
_MINUTES = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what the arguments say; 1 if a row was lost, or repeated without need, or else wrong."""
    asked = _arguments(arguments)
    print(f"CHAOS_SEED={asked.seed}", flush=True)
    every = STEADY if asked.soak else OUTPUTS
    outputs = [cast("Output", asked.output)] if asked.output else every
    began = time.monotonic()
    outcomes: list[Outcome] = []
    figures: dict[str, object] = {}
    with started() as servers:
        for output in outputs:
            seconds = 60 * asked.minutes / len(outputs)
            outcome, facts = played(servers, output, asked.seed, seconds, soak=asked.soak)
            outcomes.append(outcome)
            figures[output] = facts
            print(_line(output, outcome, facts), flush=True)
    print(
        json.dumps(
            {
                **figures,
                "lost": sum(each.lost for each in outcomes),
                "duplicates": sum(each.duplicates for each in outcomes),
                "unexplained_duplicates": sum(each.unexplained_duplicates for each in outcomes),
                "wrong": [said for each in outcomes for said in each.said],
                "seconds": round(time.monotonic() - began),
                "seed": asked.seed,
            }
        )
    )
    return 0 if all(each.is_good for each in outcomes) else 1


def played(
    servers: Servers, output: Output, seed: str, seconds: float, *, soak: bool = False
) -> tuple[Outcome, dict[str, object]]:
    """Play one pipeline for so long: what came of it, and its figures.

    What does not come about in time is a complaint. In a soak every process is a new interpreter,
    as its memory is what is asked for.
    """
    with ExitStack() as stack:
        launch = subprocess.Popen if soak else None
        trial = stack.enter_context(servers.trial(TOPOLOGIES, launch))
        replicas = Replicas(trial, output, session_seconds=SESSION_SECONDS, topics=TOPICS)
        play: Chaos | Soak = Chaos(replicas, Random(f"{seed} {output}"), seconds)
        if soak:
            play = Soak(replicas, seconds)
        try:
            with replicas:
                outcome = play.play()
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is told
            outcome = Outcome(said=(f"{type(error).__name__}: {error}",))
        return outcome, play.figures()


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="of all outputs together")
    parser.add_argument(
        "--output", choices=OUTPUTS, help="messages is exactly once; both in turn, lines for a soak"
    )
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--soak", action="store_true", help="a steady load; is memory flat?")
    return parser.parse_args(arguments)


def _line(output: str, outcome: Outcome, facts: Mapping[str, object]) -> str:
    said = "; ".join(outcome.said) or "as it must be"
    counts = ", ".join(f"{name} {value}" for name, value in facts.items())
    good = "ok" if outcome.is_good else "FAILED"
    return f"{good} {output}: {outcome.duplicates} repeated, {counts}; {said}"


if __name__ == "__main__":
    sys.exit(main())
