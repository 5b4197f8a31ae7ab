"""Suite enrich: parse, look up, multiply, filter and commit, against a loop written by hand."""

import time
from collections.abc import Callable
from functools import partial

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from benchmarks.bench import Bench, medians, opened, rounded
from benchmarks.child import Figures, Job
from benchmarks.measured import AT_ONCE, FEW_AT_ONCE, BareLoop, run_headrace
from benchmarks.orders import LEAST_TOTAL, Orders, users
from benchmarks.orders_topologies import FLOWS
from benchmarks.result import Goal, Result, Table
from headrace import Topology
from headrace.sinks import DiscardSink

COMMIT_SECONDS = 1.0
RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "orders"
MODULE = "benchmarks.enrich"
NAMES = ("loop", "loop_few", "functions", "vectorised")
MOST = {"functions": 1.25, "vectorised": 1.0}  # of the loop's CPU per record
NOTES = f"""\
Orders as JSON of 111 bytes. Each is parsed, its user looked up among 100,000, quantity and
price are multiplied, and totals below 50 dropped (one order in twelve). `loop` is written by
hand with confluent-kafka, takes {AT_ONCE:,} messages at once and commits to its consumer group
once a second; Headrace stores its offsets in ZooKeeper as often. All make the same rows and give
them to a sink that counts. The ratios are to the loop; those in brackets to `loop_few`, which
takes {FEW_AT_ONCE:,} messages at once and is otherwise the same."""


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, NAMES, TOPIC, records, rounds=rounds)
    figures = {name: medians(found) for name, found in runs.items()}
    rows_found = {found["rows"] for found in figures.values()}
    if len(rows_found) > 1:
        raise SystemExit(f"the variants do not make the same rows: {rows_found}")
    ratios = {name: figures[name]["cpu_us"] / figures["loop"]["cpu_us"] for name in MOST}
    few = {name: figures[name]["cpu_us"] / figures["loop_few"]["cpu_us"] for name in MOST}
    rates = {name: figures[name]["per_second"] / figures["loop"]["per_second"] for name in MOST}
    rows = [
        (
            name,
            f"{found['per_second']:,.0f}",
            f"{found['cpu_us']:.2f}",
            f"{ratios[name]:.2f} ({few[name]:.2f})" if name in ratios else "",
            f"{rates[name]:.2f}" if name in rates else "",
            f"{found['peak_mb']:,.0f}",
        )
        for name, found in figures.items()
    ]
    columns = ("variant", "records/s", "CPU µs/record", "CPU ratio", "rate ratio", "peak MB")
    title = f"{records:,} records, medians of {rounds} rounds"
    return Result(
        "enrich",
        {
            "records": records,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "rows": int(rows_found.pop()),
            "cpu_us": rounded(figures, "cpu_us", 3),
            "per_second": rounded(figures, "per_second", None),
            "cpu_ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
            "cpu_ratio_few": {name: round(ratio, 3) for name, ratio in few.items()},
        },
        [Table(title, columns, rows)],
        [Goal(f"{name}: CPU", ratios[name], most, at_most=True) for name, most in MOST.items()],
        NOTES,
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
