"""`make faults`: the crash matrix and the fault matrix; see docs/reliability.md."""
# ruff: noqa: T201 - it tells people what it finds

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests import spark_classes
from tests.faults import report
from tests.faults.catalogue import Play, catalogue, chosen, crash_cases, what_of
from tests.faults.judge import Outcome
from tests.faults.servers import Servers, started

_MINUTES = 180.0
_JOBS = 2


@dataclass
class Results:
    """What came of every case; any thread may add. Nothing begins after `ends` (monotonic)."""

    ends: float
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def play(self, name: str, what: str, play: Play, servers: Servers) -> None:
        """Play a case, count it, and tell of it."""
        since = time.monotonic()
        if since > self.ends:
            with self._lock:
                self.skipped.append(name)
            return
        outcome = play(servers)
        with self._lock:
            self.outcomes[name] = outcome
            print(_line(name, what, outcome, time.monotonic() - since), flush=True)

    def figures(self, seed: str, seconds: float) -> dict[str, object]:
        """What the last line says."""
        outcomes = self.outcomes.values()
        return {
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
        """Whether all was played, and went as promised."""
        return (
            bool(self.outcomes)
            and not self.skipped
            and all(each.is_good for each in self.outcomes.values())
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what the arguments say; 1 if anything failed or was skipped, or nothing was played."""
    asked = _arguments(arguments)
    print(f"FAULTS_SEED={asked.seed}", flush=True)
    spark_classes.use()
    os.environ.setdefault("JDK_JAVA_OPTIONS", spark_classes.LIGHT)
    plays, cases = catalogue(asked.seed), crash_cases()
    began = time.monotonic()
    results = Results(ends=began + 60 * asked.minutes)
    with started(asked.keep) as servers, ThreadPoolExecutor(asked.jobs) as pool:
        waiting = [
            pool.submit(results.play, name, what_of(cases, name), plays[name], servers)
            for name in asked.cases
        ]
        for each in waiting:
            each.result()
    seconds = time.monotonic() - began
    if asked.report is not None:
        page = asked.report.read_text(encoding="utf-8")
        text = report.written_into(page, cases, results.outcomes, asked.seed, seconds, asked.jobs)
        asked.report.write_text(text, encoding="utf-8")
    print(json.dumps(results.figures(asked.seed, seconds)))
    return 0 if results.is_good else 1


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    every = list(catalogue(""))
    parser.add_argument(
        "--cases",
        type=lambda text: chosen(text, every),
        default=every,
        help="ids with commas between them, such as C07, C07:kill, C07:kill:2 or K02; all",
    )
    parser.add_argument("--jobs", type=int, default=_JOBS, help="cases at the same time")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="nothing begins later")
    parser.add_argument("--keep", type=Path, help="where the folders of failed cases go")
    parser.add_argument("--report", type=Path, help="a page whose marked part is written anew")
    return parser.parse_args(arguments)


def _line(name: str, what: str, outcome: Outcome, seconds: float) -> str:
    facts = [f"{outcome.duplicates} repeated"] if outcome.duplicates else []
    if outcome.recovery_seconds is not None:
        facts.append(f"well again in {outcome.recovery_seconds:.1f} s")
    facts += outcome.said
    said = "; ".join(facts) or "as it must be"
    return f"{'ok' if outcome.is_good else 'FAILED'} {name} ({what}): {said} ({seconds:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
