"""What is spooled of a micro-batch for Spark to append; no Spark runs."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks import SparkSink
from sinks.spark import frames
from sinks.storage import Storage
from topology.errors import RowsRejected
from topology.sink import Batch, SinkContext

SCHEMA = pa.schema([("n", pa.int64()), pa.field("place", pa.string(), nullable=False)])


class Reading:
    """A Spark that only looks at what is in the spool."""

    def __init__(self, warehouse):
        self.warehouse = warehouse
        self.jobs = []

    def run(self, job, *, group):
        if not group.endswith("-open"):
            files = sorted(self.spooled())
            self.jobs.append([n for each in files for n in pq.read_table(each)["n"].to_pylist()])
        return []

    def spooled(self):
        return [*(self.warehouse / ".spool").rglob("*.parquet")]


@pytest.fixture
def spark(tmp_path):
    return Reading(tmp_path)


@pytest.fixture
def sink(spark, tmp_path):
    sink = SparkSink("orders", format="parquet", schema=SCHEMA, partition_by=["place"])
    sink.open(SinkContext("pipeline", "sink", {}, Storage(str(tmp_path)), spark))
    return sink


def test_rows_that_no_file_or_folder_can_hold_are_rejected_and_the_others_appended_once(
    sink, spark, monkeypatch
):
    """Promise 13."""

    def write(rows, path, **options):
        original(rows, path, **options)
        if 3 in rows["n"].to_pylist():
            raise pa.ArrowInvalid("3 cannot be written")

    original = pq.write_table
    monkeypatch.setattr(frames.pq, "write_table", write)
    rows = [{"n": number, "place": "x"} for number in range(5)]
    with pytest.raises(RowsRejected) as caught:
        sink.write(Batch(1, [[*rows, {"n": 5, "place": ""}, {"n": 6}]], 7))
    assert set(caught.value.reasons) == {3, 5, 6}
    assert spark.jobs == [[0, 1, 2, 4]]
    assert not spark.spooled()
