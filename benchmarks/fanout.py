"""Suite fanout: ten tuples per record through three bolts, and what one tuple costs."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from benchmarks.bench import Bench, medians
from benchmarks.child import Figures, Job
from benchmarks.measured import BareLoop, run_headrace
from benchmarks.result import Goal, Result, facts, table
from headrace import Record, Reject, Topology, bolt
from headrace.sinks import DiscardSink

WORDS = 10
RECORDS = 500_000
ROUNDS = 3
TOPIC = "lines"
MODULE = "benchmarks.fanout"
NAMES = ("loop", "functions", "vectorised")
HEADRACE = ("functions", "vectorised")
MOST_US = 1.5
BOLTS = 3
COLUMNS = {
    "tuples/s": "{tuples:,.0f}", "CPU µs/tuple": "{cpu_us_per_tuple:.2f}",
    "wall µs/tuple": "{wall_us_per_tuple:.2f}", "CPU µs/step": "{step:.2f}",
    "peak MB": "{peak_mb:,.0f}",
}  # fmt: skip


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    bench.publish(TOPIC, line, records)
    figures = medians(bench.rounds(MODULE, NAMES, TOPIC, records, rounds=rounds))
    for name, found in figures.items():
        if found["rows"] != records * WORDS:
            raise SystemExit(f"{name} made {found['rows']:,} rows of {records:,} records")
        found["tuples"] = found["per_second"] * WORDS
        found["cpu_us_per_tuple"] = found["cpu_us"] / WORDS
        found["wall_us_per_tuple"] = 1e6 / found["tuples"]
        found["step"] = found["cpu_us_per_tuple"] / BOLTS
    title = f"{records * WORDS:,} tuples of {records:,} records, medians of {rounds} rounds"
    rounded = facts(figures, open_seconds=3, cpu_us_per_tuple=3, wall_us_per_tuple=3)
    return Result(
        "fanout",
        {"records": records, "rounds": rounds, "tuples_per_record": WORDS, **rounded},
        [table(title, figures, COLUMNS)],
        [
            Goal(f"{name}: {kind} µs/tuple", figures[name][key], MOST_US, at_most=True)
            for name in HEADRACE
            for kind, key in (("CPU", "cpu_us_per_tuple"), ("wall", "wall_us_per_tuple"))
        ],
    )


Row = tuple[str, int]


def line(number: int) -> bytes:
    return b" ".join(b"w%04d" % ((number * 31 + word * 977) % 10_000) for word in range(WORDS))


def loop(job: Job) -> Figures:
    written = 0

    def work(messages: list[Message]) -> None:
        nonlocal written
        rows = []
        for message in messages:
            for word in str(message.value() or b"", "utf-8").split():
                upper = word.upper()
                rows.append((upper, len(upper)))
        written += len(rows)

    return {**BareLoop(job).run(work), "rows": written}


@bolt
def split(record: Record) -> Iterator[str]:
    if record.value is None:
        raise Reject("not a line: the record has no value")
    yield from str(record.value, "utf-8").split()


@bolt
def to_upper(word: str) -> str:
    return word.upper()


@bolt
def measure(word: str) -> Row:
    return word, len(word)


def functions(job: Job) -> Figures:
    topology = Topology("fanout-functions")
    topology.source(job.topic).then(split).then(to_upper).then(measure).into(DiscardSink())
    return run_headrace(topology, job)


@bolt(vectorised=True, columns=["value"], concurrent=True)
def split_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give the words of a chunk's lines; the other columns, the lineage's too, are repeated."""
    lines = batch.column("value").cast(pa.string())
    words = pc.split_pattern(lines, " ")
    others = batch.drop_columns(["value"]).take(pc.list_parent_indices(words))
    return others.append_column("word", pc.list_flatten(words))


@bolt(vectorised=True, concurrent=True)
def to_upper_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.get_field_index("word")
    return batch.set_column(place, "word", pc.utf8_upper(batch.column(place)))


@bolt(vectorised=True, concurrent=True)
def measure_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    words: Any = batch.column("word")
    return batch.append_column("length", pc.utf8_length(words))


def vectorised(job: Job) -> Figures:
    topology = Topology("fanout-vectorised")
    words = topology.source(job.topic).then(split_columns)
    words.then(to_upper_columns).then(measure_columns).into(DiscardSink())
    return run_headrace(topology, job)


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "loop": loop,
    "functions": functions,
    "vectorised": vectorised,
}
