"""Suite fanout: ten tuples per record through three bolts, and what one tuple costs."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from benchmarks.bench import Bench, medians, opened
from benchmarks.child import Figures, Job
from benchmarks.measured import BareLoop, run_headrace
from benchmarks.result import Goal, Result, Table
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
NOTES = f"""\
A record is a line of {WORDS} words. The first bolt makes a tuple of each, the second turns it into
capitals, the third adds its length, and a sink counts. Everything is divided by {WORDS} tuples
per record, that is, the reading of the record and all three bolts are in the figure; a step is
one tuple through one bolt. `loop` is the same work by hand, without any tracking or commit."""


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, line, records)
    runs = bench.rounds(MODULE, NAMES, TOPIC, records, rounds=rounds)
    figures = {name: medians(found) for name, found in runs.items()}
    for name, found in figures.items():
        if found["rows"] != records * WORDS:
            raise SystemExit(f"{name} made {found['rows']:,} rows of {records:,} records")
    cpu = {name: found["cpu_us"] / WORDS for name, found in figures.items()}
    wall = {name: 1e6 / found["per_second"] / WORDS for name, found in figures.items()}
    rows = [
        (
            name,
            f"{found['per_second'] * WORDS:,.0f}",
            f"{cpu[name]:.2f}",
            f"{wall[name]:.2f}",
            f"{cpu[name] / BOLTS:.2f}",
            f"{found['peak_mb']:,.0f}",
        )
        for name, found in figures.items()
    ]
    columns = ("variant", "tuples/s", "CPU µs/tuple", "wall µs/tuple", "CPU µs/step", "peak MB")
    title = f"{records * WORDS:,} tuples of {records:,} records, medians of {rounds} rounds"
    goals = [
        Goal(f"{name}: {kind} µs/tuple", of[name], MOST_US, at_most=True)
        for name in HEADRACE
        for kind, of in (("CPU", cpu), ("wall", wall))
    ]
    return Result(
        "fanout",
        {
            "records": records,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "tuples_per_record": WORDS,
            "cpu_us_per_tuple": {name: round(value, 3) for name, value in cpu.items()},
            "wall_us_per_tuple": {name: round(value, 3) for name, value in wall.items()},
        },
        [Table(title, columns, rows)],
        goals,
        NOTES,
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
