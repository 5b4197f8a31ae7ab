import subprocess
import sys
from typing import Any, cast

import pyarrow as pa

from sinks import DiscardSink, MemoryDeadLetters
from tests.support.patience import seconds
from topology.record import Record
from topology.sink import Batch, DeadLetter, Delivered


def test_the_discard_sink_counts_rows_of_any_type() -> None:
    sink = DiscardSink()
    sink.write(Batch(1, [[1, "a", None], pa.record_batch({"a": [1, 2]})], 5))
    sink.write(Batch(2, [[object()]], 1))
    assert sink.rows == 6


def test_dead_letters_in_memory_are_durable_at_once_and_told_of_once() -> None:
    sink = MemoryDeadLetters()
    letter = DeadLetter(Record(b"x", cast("Any", None)), "bad", 1, "ValueError", "parse", 0)
    sink.send(letter, 5)
    sink.send(letter, 6)
    assert sink.pending == 2
    assert sink.poll() == [Delivered(5, None), Delivered(6, None)]
    assert sink.poll() == []
    assert sink.pending == 0
    assert sink.letters == [letter, letter]


def test_importing_the_sinks_imports_no_library_of_a_store() -> None:
    code = (
        "import sys, sinks; from sinks.spark.driver import SparkDriver; "
        "late = {'pyspark', 'py4j', 'confluent_kafka', 'pandas', 'deltalake', 'pyiceberg'}; "
        "print(sorted(late & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds(60),
    )
    assert done.stdout.strip() == "[]"
