"""Suite enrich: parse, look up, multiply, filter and commit, against a loop written by hand."""

import time
from collections.abc import Callable
from functools import partial

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from benchmarks.bench import Bench, medians
from benchmarks.child import Figures, Job
from benchmarks.measured import AT_ONCE, FEW_AT_ONCE, BareLoop, run_headrace
from benchmarks.orders import LEAST_TOTAL, Orders, users
from benchmarks.orders_topologies import FLOWS
from benchmarks.result import Result, divide, facts, goals, table
from headrace import Topology
from headrace.sinks import DiscardSink

COMMIT_SECONDS = 1.0
RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "orders"
MODULE = "benchmarks.enrich"
NAMES = ("loop", "loop_few", "functions", "vectorised")
MOST = {"functions": 1.25, "vectorised": 1.0}  # of the loop's CPU per record
COLUMNS = {
    "records/s": "{per_second:,.0f}", "CPU µs/record": "{cpu_us:.2f}",
    "CPU ratio": "{cpu_ratio:.2f} ({cpu_ratio_few:.2f})", "rate ratio": "{rate_ratio:.2f}",
    "peak MB": "{peak_mb:,.0f}",
}  # fmt: skip


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    bench.publish(TOPIC, Orders().value, records)
    figures = medians(bench.rounds(MODULE, NAMES, TOPIC, records, rounds=rounds))
    rows_found = {found["rows"] for found in figures.values()}
    if len(rows_found) > 1:
        raise SystemExit(f"the variants do not make the same rows: {rows_found}")
    divide(figures, "cpu_ratio", "cpu_us", dict.fromkeys(MOST, "loop"))
    divide(figures, "cpu_ratio_few", "cpu_us", dict.fromkeys(MOST, "loop_few"))
    divide(figures, "rate_ratio", "per_second", dict.fromkeys(MOST, "loop"))
    rounded = facts(
        figures, open_seconds=3, cpu_us=3, per_second=None, cpu_ratio=3, cpu_ratio_few=3
    )
    return Result(
        "enrich",
        {"records": records, "rounds": rounds, "rows": int(rows_found.pop()), **rounded},
        [table(f"{records:,} records, medians of {rounds} rounds", figures, COLUMNS)],
        goals(figures, "cpu_ratio", MOST, "CPU", at_most=True),
    )


def loop(job: Job, at_once: int = AT_ONCE) -> Figures:
    """The hand-written loop. A record that it cannot process is counted and passed over."""
    segments = users()
    bare = BareLoop(job, at_once, store_offsets=True)
    consumer, commit_due = bare.consumer, time.monotonic() + COMMIT_SECONDS
    rows_written = bad = 0

    def work(messages: list[Message]) -> None:
        nonlocal commit_due, rows_written, bad
        rows = []
        for message in messages:
            try:
                order = orjson.loads(message.value() or b"")
                segment = segments[order["user_id"]]
                total = order["qty"] * order["price"]
            except (KeyError, TypeError, orjson.JSONDecodeError):
                bad += 1
                continue
            if total >= LEAST_TOTAL:
                rows.append({**order, "segment": segment, "total": total})
        rows_written += len(rows)  # the sink counts
        if time.monotonic() >= commit_due:
            commit_due = time.monotonic() + COMMIT_SECONDS
            commit(consumer)

    found = bare.run(work, at_end=lambda: commit(consumer))
    return {**found, "rows": rows_written, "bad": bad}


def commit(consumer: Consumer) -> None:
    """Commit what was read; nothing may have been since the last time."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:  # noqa: SLF001 - librdkafka's own codes begin so
            raise


def priced(job: Job, flow: str) -> Figures:
    """One of the flows of suite tables, into a sink that counts."""
    topology = Topology(f"enrich-{flow}")
    FLOWS[flow](topology, job.topic).into(DiscardSink())
    return run_headrace(topology, job)


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "loop": loop,
    "loop_few": partial(loop, at_once=FEW_AT_ONCE),
    "functions": partial(priced, flow="functions"),
    "vectorised": partial(priced, flow="vectorised"),
}
