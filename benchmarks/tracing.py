"""Suite tracing: what it costs to trace none or some of the records."""

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from benchmarks.bench import Bench, medians, opened, rounded
from benchmarks.child import Figures, Job
from benchmarks.measured import run_headrace
from benchmarks.result import Goal, Result, Table
from examples.flights.bolts import parse
from headrace import Topology
from headrace.sinks import DiscardSink
from service.observability.snapshot import TraceStatistics

_SECONDS = 30
RECORDS = 2_000_000
ROUNDS = 5
TOPIC = "flights-traced"
MODULE = "benchmarks.tracing"
BASE = "off"
NAMES = (BASE, "none", "one_in_1000", "one_in_100", "one_in_10")
LEAST = 0.85  # of the rate without tracing, while it is on and nothing is traced
MOST_US = 250.0  # of processor time for each record that is traced
NOTES = """\
Flights as JSON through one function that parses them, as in suite `hot-path`, into a sink that
only counts. `off` has no endpoint. The others send to a collector in a process of its own on the
same machine: `none` has a `sample_ratio` of 0, so it only looks at the headers of each record,
which have no `traceparent`; the others trace 0.1 %, 1 % and 10 %. A traced record has two spans,
its own and the bolt's, and each batch that has one has a third. `traced` is how
many were, and what each cost in processor time, `spans` how many arrived: where spans are made
faster than they can be sent, those in the queue are dropped, and beyond 4,096 records at once
none are traced. No record waits for a span."""


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    total = bench.publish_flights(TOPIC, records)
    runs = bench.rounds(MODULE, NAMES, TOPIC, total, rounds=rounds)
    figures = {name: medians(found) for name, found in runs.items()}
    base = figures[BASE]
    ratios = {name: figures[name]["per_second"] / base["per_second"] for name in NAMES[1:]}
    traced_us = {
        name: (found["cpu_us"] - base["cpu_us"]) * total / found["traced"]
        for name, found in figures.items()
        if found["traced"]
    }
    columns = ("variant", "records/s", "ratio", "CPU µs/record", "traced", "µs each", "spans", "MB")
    rows = [
        (
            name,
            f"{found['per_second']:,.0f}",
            f"{ratios[name]:.2f}" if name in ratios else "",
            f"{found['cpu_us']:.2f}",
            f"{found['traced']:,.0f}",
            f"{traced_us[name]:.0f}" if name in traced_us else "",
            f"{found['spans']:,.0f}",
            f"{found['end_mb']:,.0f}",
        )
        for name, found in figures.items()
    ]
    return Result(
        "tracing",
        {
            "records": total,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "per_second": rounded(figures, "per_second", None),
            "cpu_us": rounded(figures, "cpu_us", 3),
            "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
            "traced_us": {name: round(found, 1) for name, found in traced_us.items()},
            "traced": rounded(figures, "traced", None),
            "spans": rounded(figures, "spans", None),
        },
        [Table(f"{total:,} records, medians of {rounds} rounds", columns, rows)],
        [
            Goal("none: rate without tracing", ratios["none"], LEAST),
            Goal("one_in_10: µs for each", traced_us["one_in_10"], MOST_US, at_most=True),
        ],
        NOTES,
    )


def traced(job: Job, share: float | None) -> Figures:
    """One function that parses; its records are traced to a collector in another process."""
    topology = Topology("traced")
    topology.source(job.topic).then(parse).into(DiscardSink())
    if share is None:
        return {**run_headrace(topology, job), "traced": 0, "spans": 0}
    with Collector() as collector:
        tracing = {"endpoint": collector.endpoint, "sample_ratio": share}
        seen: list[TraceStatistics | None] = []
        found = run_headrace(
            topology,
            job,
            tracing=tracing,
            on_snapshot=lambda _, snapshot: seen.append(snapshot.traces),
        )
    last = seen[-1]
    traced = 0 if last is None else last.traced
    return {**found, "traced": traced, "spans": collector.spans}


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "off": partial(traced, share=None),
    "none": partial(traced, share=0.0),
    "one_in_1000": partial(traced, share=0.001),
    "one_in_100": partial(traced, share=0.01),
    "one_in_10": partial(traced, share=0.1),
}


class Collector:
    """The process. After `with`, `spans` tells how many have arrived."""

    def __init__(self) -> None:
        self.spans = 0
        self.endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tracing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout is not None:
            self.endpoint = self._process.stdout.readline().strip()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            said, _ = self._process.communicate(timeout=_SECONDS)
            self.spans = int(said)


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base
        """Say nothing."""


def main() -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceRequest,
    )

    server = _Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}/v1/traces", flush=True)
    sys.stdin.read()
    server.shutdown()
    requests = map(ExportTraceServiceRequest.FromString, server.bodies)
    print(sum(len(s.spans) for r in requests for t in r.resource_spans for s in t.scope_spans))


if __name__ == "__main__":
    main()
