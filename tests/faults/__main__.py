"""`make faults`, `make crash`, `make chaos`: faults on real servers; see docs/reliability.md."""
# ruff: noqa: T201 - it tells people what it finds

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from tests import spark_classes
from tests.faults import catalogue, chaos, crash, report, sink_crashes
from tests.faults.catalogue import Play
from tests.faults.judge import Outcome
from tests.faults.servers import Servers, started


class Suite(NamedTuple):
    """A set of cases; `plays_of(asked, seed, minutes)` gives those that a text names."""

    plays_of: Callable[[str, str, float], dict[str, Play]]
    minutes: float
    jobs: int
    help: str


SUITES: Mapping[str, Suite] = {
    "matrix": Suite(
        catalogue.plays_of, 180.0, 2, "ids such as C07, C07:kill, C07:kill:2 or K02"
    ),
    "sinks": Suite(
        sink_crashes.plays_of, 180.0, 2,
        "sinks, or SINK:PLACE; SINK@spark is on the spark engine, SINK@s3 in SeaweedFS",
    ),
    "chaos": Suite(chaos.plays_of, 10.0, 1, f"of {', '.join(chaos.OUTPUTS)}"),
}  # fmt: skip


@dataclass
class Results:
    """Outcomes of all cases; any thread may add. No case begins after `ends` (monotonic)."""

    ends: float
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def play(self, name: str, play: Play, servers: Servers) -> None:
        since = time.monotonic()
        if since > self.ends:
            with self._lock:
                self.skipped.append(name)
            return
        if servers.keep is not None:
            servers = replace(servers, keep=servers.keep / name.replace(":", "-"))
        outcome = play.run(servers)
        with self._lock:
            self.outcomes[name] = outcome
            print(_line(name, play.what, outcome, time.monotonic() - since), flush=True)

    def figures(self, seed: str, seconds: float) -> dict[str, object]:
        outcomes = self.outcomes.values()
        return {
            **{name: each.figures for name, each in self.outcomes.items() if each.figures},
            "cases": len(outcomes),
            "passed": sum(each.is_good for each in outcomes),
            "lost": sum(each.lost for each in outcomes),
            "duplicates": sum(each.duplicates for each in outcomes),
            "unexplained_duplicates": sum(each.unexplained_duplicates for each in outcomes),
            "skipped": len(self.skipped),
            "failed": [name for name, each in self.outcomes.items() if not each.is_good],
            "seconds": round(seconds),
            "seed": seed,
        }

    @property
    def is_good(self) -> bool:
        """Whether all cases were played, and went as promised."""
        is_all_good = all(each.is_good for each in self.outcomes.values())
        return bool(self.outcomes) and not self.skipped and is_all_good


def main(arguments: Sequence[str] | None = None) -> int:
    """Play a suite; return 1 if a case failed or was skipped, or nothing was played."""
    asked = _arguments(arguments)
    print(f"{asked.suite.upper()}_SEED={asked.seed}", flush=True)
    spark_classes.use()
    os.environ.setdefault("JDK_JAVA_OPTIONS", spark_classes.LIGHT)
    began = time.monotonic()
    is_chaos = asked.suite == "chaos"  # its minutes are the duration
    results = Results(ends=float("inf") if is_chaos else began + 60 * asked.minutes)
    with started(asked.keep, asked.seed) as servers, ThreadPoolExecutor(asked.jobs) as pool:
        waiting = [
            pool.submit(results.play, name, play, servers) for name, play in asked.plays.items()
        ]
        for each in waiting:
            each.result()
    seconds = time.monotonic() - began
    if asked.report is not None:
        page = asked.report.read_text(encoding="utf-8")
        cases = crash.crash_cases()
        text = report.written_into(page, cases, results.outcomes, asked.seed, seconds, asked.jobs)
        asked.report.write_text(text, encoding="utf-8")
    print(json.dumps(results.figures(asked.seed, seconds)))
    return 0 if results.is_good else 1


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    told = "; ".join(f"{name}: {suite.help}" for name, suite in SUITES.items())
    parser.add_argument("--suite", choices=SUITES, default="matrix")
    parser.add_argument("--cases", default="", help=f"with commas between them; all. {told}")
    parser.add_argument("--jobs", type=int, help="cases at the same time")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--minutes", type=float, help="no case begins later; duration of chaos")
    parser.add_argument("--keep", type=Path, help="where the folders of failed cases go")
    parser.add_argument("--report", type=Path, help="a page whose marked part is written anew")
    asked = parser.parse_args(arguments)
    suite = SUITES[asked.suite]
    asked.jobs = asked.jobs or suite.jobs
    asked.minutes = suite.minutes if asked.minutes is None else asked.minutes
    try:
        asked.plays = suite.plays_of(asked.cases, asked.seed, asked.minutes)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    return asked


def _line(name: str, what: str, outcome: Outcome, seconds: float) -> str:
    facts = [f"{outcome.duplicates} repeated"] if outcome.duplicates else []
    if outcome.recovery_seconds is not None:
        facts.append(f"well again in {outcome.recovery_seconds:.1f} s")
    facts += [f"{figure} {value}" for figure, value in outcome.figures.items()]
    told = "; ".join([*facts, *outcome.said]) or "as promised"
    return f"{'ok' if outcome.is_good else 'FAILED'} {name} ({what}): {told} ({seconds:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
