"""Suite start: what a newcomer waits for, from the import to the first durable row."""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

from confluent_kafka import Producer

from benchmarks.bench import Bench
from benchmarks.child import TIMEOUT_SECONDS
from benchmarks.result import Goal, Result, spread, table
from headrace import Record, Topology
from headrace.sinks import DeltaSink, KafkaDeadLetters, MemoryDeadLetters, Sink, SparkSink

MODULE = "benchmarks.start"
TOPIC = "start"
ROUNDS = 5
SLOW_ROUNDS = 2  # of what takes more than a few seconds
MOST_SECONDS = {
    "import": 0.4,
    "help": 0.5,
    "absent_broker": 5.0,
    "first_row": 6.0,
    "first_row_spark": 15.0,
    "warm_run": 20.0,
    "cold_run": 110.0,
}
_POLL_SECONDS = 0.05
_ROOT = Path(__file__).resolve().parent.parent
_HEADRACE = str(Path(sys.executable).with_name("headrace"))
_ABSENT = "127.0.0.1:1"
_COLUMNS = {
    "median": "{median:,.2f}", "lowest": "{spread[0]:,.2f}", "highest": "{spread[1]:,.2f}",
}  # fmt: skip


class Row(TypedDict):
    value: int


def delta() -> Topology:
    """Into a table without Spark."""
    return _topology(DeltaSink("rows", schema=Row))


def spark() -> Topology:
    """Into a table by Spark."""
    return _topology(SparkSink("rows", format="delta", schema=Row))


def _topology(sink: Sink[Any]) -> Topology:
    topology = Topology("start")
    topology.dead_letters.into(MemoryDeadLetters())
    topology.source(TOPIC).map(_row).into(sink, batch_seconds=0.1)
    return topology


def _row(record: Record) -> Row:
    return {"value": int(record.value or b"0")}


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    quick = bench.options.records is not None  # without `make run`
    measured: dict[str, tuple[int, Callable[[], float]]] = {
        "import": (rounds, lambda: _seconds(sys.executable, "-c", "import headrace")),
        "help": (rounds, lambda: _seconds(_HEADRACE, "--help")),
        "absent_broker": (rounds, _absent_broker),
        "first_row": (min(rounds, SLOW_ROUNDS), lambda: _first_row("delta")),
        "first_row_spark": (min(rounds, SLOW_ROUNDS), lambda: _first_row("spark")),
    }
    found: dict[str, list[float]] = {}
    for name, (times, measure) in measured.items():
        measure()  # the first one reads files and compiles modules
        for turn in range(times):
            bench.progress.step(name, turn, times)
            found.setdefault(f"{name}_seconds", []).append(measure())
    if not quick:
        bench.progress.step("make run in a new clone")
        found["cold_run_seconds"], found["warm_run_seconds"] = _make_runs()
    medians = {name: statistics.median(of) for name, of in found.items()}
    each = {name: {"median": medians[name], "spread": spread(of)} for name, of in found.items()}
    return Result(
        "start",
        {
            "rounds": rounds,
            **{name: round(value, 3) for name, value in medians.items()},
            "spread": {name: of["spread"] for name, of in each.items()},
        },
        [
            table(
                f"medians of up to {rounds} rounds",
                {f"`{name}`": of for name, of in each.items()},
                _COLUMNS,
            )
        ],
        [
            Goal(f"{name}, s", medians[f"{name}_seconds"], most, at_most=True)
            for name, most in MOST_SECONDS.items()
            if f"{name}_seconds" in medians
        ],
    )


def _seconds(*command: str) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, cwd=_ROOT, timeout=TIMEOUT_SECONDS)
    return time.monotonic() - began


def _absent_broker() -> float:
    """From the start of a pipeline with a Spark sink until its broker is named as absent."""
    environment = {
        "HEADRACE_KAFKA": f'{{"bootstrap.servers": "{_ABSENT}"}}',
        "HEADRACE_ZOOKEEPER__HOSTS": _ABSENT,
        "HEADRACE_HTTP__PORT": "0",
    }
    with _running("absent", environment) as (process, began):
        for line in process.stderr or ():
            if _ABSENT in line:
                return time.monotonic() - began
    raise SystemExit("the absent broker was not named")


def absent() -> Topology:
    """The same with dead letters in Kafka, as is usual."""
    topology = Topology("absent")
    topology.dead_letters.into(KafkaDeadLetters("start.dead"))
    topology.source(TOPIC).map(_row).into(SparkSink("rows", format="delta", schema=Row))
    return topology


def _first_row(name: str) -> float:
    """From the start of `run --embedded` until a row that waits for it can be read."""
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        place = Path(folder)
        ports, log = place / "state/kafka/kafka.ports", place / "tables/rows/_delta_log"
        environment = {"HEADRACE_STORAGE__WAREHOUSE": str(place / "tables")}
        words = ("--embedded", "--state-dir", str(place / "state"))
        with _running(name, environment, *words) as (process, began):
            _until(process, lambda: ports.is_file() and bool(ports.read_text()))
            address = f"127.0.0.1:{ports.read_text().split()[0]}"
            producer = Producer(
                {"bootstrap.servers": address, "log_level": 0, "retry.backoff.ms": 50,
                 "topic.metadata.propagation.max.ms": 60_000}
            )  # fmt: skip
            producer.produce(TOPIC, b"1")
            producer.flush(TIMEOUT_SECONDS)
            _until(process, lambda: any('"add"' in each.read_text() for each in log.glob("*.json")))
            return time.monotonic() - began


@contextmanager
def _running(
    name: str, environment: dict[str, str], *words: str
) -> Iterator[tuple["subprocess.Popen[str]", float]]:
    began = time.monotonic()
    process = subprocess.Popen(
        [_HEADRACE, "run", f"{MODULE}:{name}", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if not words else subprocess.DEVNULL,
        text=True,
        cwd=_ROOT,
        env=os.environ | environment,
        start_new_session=True,
    )
    try:
        yield process, began
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_SECONDS)


def _until(process: "subprocess.Popen[str]", is_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + TIMEOUT_SECONDS
    while not is_true():
        if process.poll() is not None or time.monotonic() > ends:
            raise SystemExit(f"the run has ended, or not begun: {process.args!r}")
        time.sleep(_POLL_SECONDS)


def _make_runs() -> tuple[list[float], list[float]]:
    """`make run` in a new clone: with an empty environment, and then three times more."""
    git = shutil.which("git") or "git"
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        clone = f"{folder}/clone"
        subprocess.run([git, "clone", "--quiet", _ROOT, clone], check=True)
        took = []
        for _ in range(4):
            began = time.monotonic()
            subprocess.run(["make", "--quiet", "run"], check=True, capture_output=True, cwd=clone)
            took.append(time.monotonic() - began)
    return took[:1], took[1:]
