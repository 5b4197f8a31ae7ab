"""`make nightly`: what takes long, or needs more than Python, Java and make."""
# ruff: noqa: T201 - it tells people what it finds

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tests.faults.catalogue import catalogue
from tests.faults.rows import every_row

ROOT = Path(__file__).parents[1]
FAULTS = "tests/integration/faults/"
AS_ROOT = tuple(
    f"{FAULTS}test_{name}.py"
    for name in (
        "power_cuts",
        "process_faults_memory",
        "process_faults_names",
        "process_faults_network",
        "sink_faults_disk",
    )
)
WITH_COMPILER = (f"{FAULTS}test_clock_skew.py", f"{FAULTS}test_process_faults_clock.py")
SERVER_TESTS = ("tests/acceptance", "tests/contract", "tests/integration", "tests/typing")
_END_SECONDS = 30.0  # to end after SIGTERM

Command: TypeAlias = tuple[str, ...]
Verdict: TypeAlias = Literal["passed", "failed", "not started"]


@dataclass(frozen=True)
class Part:
    """One part: what it needs, what is fetched or built for it, and the command."""

    command: Command
    minutes: float
    needs: tuple[Callable[[], str], ...] = ()  # each says what is missing, or nothing
    before: tuple[Command, ...] = ()


def root() -> str:
    """Ask for root."""
    return "" if os.geteuid() == 0 else "it needs root"


def compiler() -> str:
    """Ask for a C compiler."""
    return "" if shutil.which("cc") else "it needs a C compiler (cc)"


def npm() -> str:
    """Ask for npm."""
    return "" if shutil.which("npm") else "it needs npm"


def java() -> str:
    """Ask for Java."""
    return "" if shutil.which("java") or os.environ.get("JAVA_HOME") else "it needs Java"


def parts() -> dict[str, Part]:
    """Every part, by name."""
    python = sys.executable
    rows = {name: {test.split("::")[0] for test in row.tests} for name, row in every_row().items()}
    as_root = [name for name, files in rows.items() if files & {*AS_ROOT}]
    compiled = [name for name, files in rows.items() if files & {*WITH_COMPILER}]
    others = [name for name in catalogue("") if name not in (*as_root, *compiled)]

    def faults(cases: Sequence[str], *needs: Callable[[], str], minutes: float) -> Part:
        command = (python, "-m", "tests.faults", "--cases", ",".join(cases))
        return Part((*command, "--minutes", f"{minutes:g}"), minutes + 15, (java, *needs))

    first = random.SystemRandom().randrange(10**9)
    tools = ("deploy/tools.sh",)
    deep = (python, "-m", "pytest", "-q", "-m", "deep")
    return {
        "topologies": Part(
            ("env", f"TOPOLOGY_SEEDS={first}:300", python, "-m", "pytest", "-q", "-n", "2",
             "tests/unit/service/test_random_topologies.py"), 60,
        ),
        "scale": Part((python, "-m", "benchmarks", "scale", "--rounds", "1"), 30, (java,)),
        "simulation": Part((python, "-m", "tests.simulation"), 30),
        "examples": Part(
            ("env", "HYPOTHESIS_PROFILE=nightly", python, "-m", "pytest", "-q", "-n", "2",
             "tests/unit"), 60,
        ),
        "slow": Part(
            (python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m",
             "nightly and not deep and not faults", *SERVER_TESTS), 75, (java,),
        ),
        "crash": Part((python, "-m", "tests.faults", "--suite", "sinks"), 240, (java,)),
        "faults": faults(others, minutes=180),
        "faults-root": faults(as_root, root, minutes=30),
        "faults-clock": faults(compiled, root, compiler, minutes=30),
        "chaos": Part((python, "-m", "tests.faults", "--suite", "chaos"), 25, (java,)),
        "chart": Part(
            (*deep, "tests/deploy/test_chart_score.py"), 15, before=((*tools, "score", "chart"),)
        ),
        "azure": Part(
            (*deep, "tests/integration/sinks/test_delta_on_stores.py"), 15, (npm,),
            ((*tools, "azurite"),),
        ),
        "monitoring": Part((*deep, "tests/deep"), 60, (java,)),
        "cluster": Part(
            (*deep, "tests/deploy", "--ignore=tests/deploy/test_chart_score.py"), 60, (java, root),
            ((*tools, "score", "chart", "cluster", "engine"), ("deploy/image.sh", "compose")),
        ),
    }  # fmt: skip


@dataclass
class Night:
    """What came of every part."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def play(self, name: str, part: Part) -> None:
        """Play a part, and tell of it."""
        began = time.monotonic()
        missing = "; ".join(filter(None, (need() for need in part.needs)))
        for command in () if missing else part.before:
            if said := _run(command, part.minutes):
                missing = f"{' '.join(command)}: {said}"
                break
        if missing:
            self._tell(name, "not started", missing, began)
        elif said := _run(part.command, part.minutes):
            self._tell(name, "failed", said, began)
        else:
            self._tell(name, "passed", "", began)

    def _tell(self, name: str, verdict: Verdict, why: str, began: float) -> None:
        self.verdicts[name] = verdict
        if why:
            self.why[name] = why
        seconds = time.monotonic() - began
        print(f"{verdict}: {name} ({seconds:.0f} s){': ' * bool(why)}{why}", flush=True)

    def figures(self, seconds: float) -> dict[str, object]:
        """What the last line says."""
        found = list(self.verdicts.values())
        return {
            "run": len(found) - found.count("not started"),
            "passed": found.count("passed"),
            "failed": [name for name, each in self.verdicts.items() if each == "failed"],
            "not_started": {
                name: self.why[name]
                for name, each in self.verdicts.items()
                if each == "not started"
            },
            "seconds": round(seconds),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what the arguments say, one after the other; 1 unless all was started and passed."""
    every = parts()
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=list(every),
        help=f"names with commas between them: {', '.join(every)}; all",
    )
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.parts if name not in every]:
        parser.error(f"unknown parts: found {', '.join(unknown)}, expected {', '.join(every)}")
    began = time.monotonic()
    night = Night()
    for name in asked.parts:
        night.play(name, every[name])
    for name, why in night.why.items():
        print(f"{night.verdicts[name]}: {name}: {why}")
    print(json.dumps(night.figures(time.monotonic() - began)))
    return 0 if all(each == "passed" for each in night.verdicts.values()) else 1


def _run(command: Command, minutes: float) -> str:
    """Run a command to its end: what went wrong, or nothing."""
    try:
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    try:
        code = process.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        return f"it did not end within {minutes:g} minutes"
    finally:
        _end(process)
    return f"it ends with {code}" if code else ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of a command: its whole session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
