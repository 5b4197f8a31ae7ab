"""Suite tracing: what it costs to trace none or some of the records."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.bench import Bench, medians
from benchmarks.child import Figures, Job
from benchmarks.measured import run_headrace
from benchmarks.result import Goal, Result, divide, facts, table
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
COLUMNS = {
    "records/s": "{per_second:,.0f}", "ratio": "{ratio:.2f}", "CPU µs/record": "{cpu_us:.2f}",
    "traced": "{traced:,.0f}", "µs each": "{traced_us:.0f}", "spans": "{spans:,.0f}",
    "MB": "{end_mb:,.0f}",
}  # fmt: skip


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    total = bench.publish_flights(TOPIC, records)
    figures = medians(bench.rounds(MODULE, NAMES, TOPIC, total, rounds=rounds))
    divide(figures, "ratio", "per_second", dict.fromkeys(NAMES[1:], BASE))
    for found in figures.values():
        if found["traced"]:
            more = (found["cpu_us"] - figures[BASE]["cpu_us"]) * total
            found["traced_us"] = more / found["traced"]
    rounded = facts(
        figures, open_seconds=3, per_second=None, cpu_us=3, ratio=3, traced_us=1, traced=None,
        spans=None,
    )  # fmt: skip
    return Result(
        "tracing",
        {"records": total, "rounds": rounds, **rounded},
        [table(f"{total:,} records, medians of {rounds} rounds", figures, COLUMNS)],
        [
            Goal("none: rate without tracing", figures["none"]["ratio"], LEAST),
            Goal(
                "one_in_10: µs for each", figures["one_in_10"]["traced_us"], MOST_US, at_most=True
            ),
        ],
    )


def traced(job: Job, share: float | None) -> Figures:
    """One function that parses; its records are traced to a collector in another process."""
    topology = Topology("traced")
    topology.source(job.topic).then(parse).into(DiscardSink())
    if share is None:
        return {**run_headrace(topology, job), "traced": 0, "spans": 0}
    collector = Collector()
    seen: list[TraceStatistics | None] = []
    with collector.running() as endpoint:
        found = run_headrace(
            topology,
            job,
            tracing={"endpoint": endpoint, "sample_ratio": share},
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
    """The process. After `running`, `spans` tells how many have arrived."""

    spans = 0

    @contextmanager
    def running(self) -> Iterator[str]:
        """Give the endpoint of the process."""
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tracing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            yield process.stdout.readline().strip()
            self.spans = int(process.communicate(timeout=_SECONDS)[0])


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
