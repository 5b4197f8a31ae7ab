"""The variants of suite fanout: a line becomes ten words, and each passes two more bolts.

`loop` does the same work by hand, without Kafka's commits or any tracking: what the work
itself and the reading cost. The others are Headrace with a tree per line.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from benchmarks.job import Figures, Job
from benchmarks.measured import BareLoop, run_headrace
from headrace import Record, Reject, Topology, bolt
from headrace.sinks import DiscardSink

WORDS = 10

Row = tuple[str, int]


def line(number: int) -> bytes:
    """Ten words of five letters."""
    return b" ".join(b"w%04d" % ((number * 31 + word * 977) % 10_000) for word in range(WORDS))


def loop(job: Job) -> Figures:
    """The work by hand."""
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
    """Give a line's words one by one."""
    if record.value is None:
        raise Reject("not a line: the record has no value")
    yield from str(record.value, "utf-8").split()


@bolt
def to_upper(word: str) -> str:
    """Give the word in capitals."""
    return word.upper()


@bolt
def measure(word: str) -> Row:
    """Give the word with its length."""
    return word, len(word)


def functions(job: Job) -> Figures:
    """A generator and two functions."""
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
    """Give the words in capitals."""
    place = batch.schema.get_field_index("word")
    return batch.set_column(place, "word", pc.utf8_upper(batch.column(place)))


@bolt(vectorised=True, concurrent=True)
def measure_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the words' lengths."""
    words: Any = batch.column("word")
    return batch.append_column("length", pc.utf8_length(words))


def vectorised(job: Job) -> Figures:
    """Three vectorised bolts."""
    topology = Topology("fanout-vectorised")
    words = topology.source(job.topic).then(split_columns)
    words.then(to_upper_columns).then(measure_columns).into(DiscardSink())
    return run_headrace(topology, job)


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "loop": loop,
    "functions": functions,
    "vectorised": vectorised,
}
