"""Spark's process as seen by other users, and by other file systems, of its machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks import ParquetSink
from sinks.spark.driver import SparkDriver
from topology.sink import Batch, SinkContext

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("no_spark"),
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def driver(no_spark: None) -> Iterator[SparkDriver]:
    """A Spark as users get it."""
    driver = SparkDriver("test", {"spark.driver.memory": "512m"})
    driver.open()
    yield driver
    driver.close()


def test_local_file_system_is_the_one_that_s3a_buffers_through(driver: SparkDriver) -> None:
    """S3A writes its blocks to local disk first, and casts what `getLocal` returns."""

    def check(session: Any) -> None:
        conf = session._jsc.hadoopConfiguration()
        session._jvm.org.apache.hadoop.fs.FileSystem.getLocal(conf)
        assert conf.get("fs.file.impl") is None

    driver.run(check, group="check")


def test_local_tables_have_no_checksum_files(driver: SparkDriver, tmp_path: Path) -> None:
    schema = pa.schema([("number", pa.int64())])
    sink: ParquetSink[Any] = ParquetSink("numbers", schema=schema)
    sink.open(SinkContext("pipeline", "sink", {}, str(tmp_path), driver))
    sink.write(Batch(1, [[{"number": 1}]], 1))
    sink.close()
    assert list((tmp_path / "numbers").glob("*.parquet"))
    assert list(tmp_path.rglob("*.crc")) == []
