"""The variants of suite tracing: one job, by the share of its records that is traced."""

from collections.abc import Callable
from functools import partial

from benchmarks.collector import Collector
from benchmarks.job import Figures, Job
from benchmarks.measured import run_headrace
from examples.flights.bolts import parse
from headrace import Topology
from headrace.sinks import DiscardSink
from service.snapshot import TraceStatistics


def run(job: Job, share: float | None) -> Figures:
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
    "off": partial(run, share=None),
    "none": partial(run, share=0.0),
    "one_in_1000": partial(run, share=0.001),
    "one_in_100": partial(run, share=0.01),
    "one_in_10": partial(run, share=0.1),
}
