"""One Spark for all files of tests that can share it: to start one costs as much as many tests."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.jars.resolver import resolve
from sinks.spark.driver import SparkDriver
from tests.support.patience import seconds

_JARS = ("delta", "iceberg", "iceberg-jdbc")
_JOB_SECONDS = seconds(120.0)


class SharedSpark:
    """A Spark that starts when it is first needed, and ends for whoever starts one of its own.

    PySpark allows one context in a process.
    """

    def __init__(self) -> None:
        self._driver: SparkDriver | None = None

    @property
    def driver(self) -> SparkDriver:
        """The driver, with every jar that sinks and sources need. Its first job starts Spark."""
        if self._driver is None:
            self._driver = SparkDriver("tests", {}, _jars, job_deadline_seconds=_JOB_SECONDS)
        return self._driver

    def close(self) -> None:
        """End Spark; the next to ask for the driver gets a new one."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()


def stream(frame: Any, folder: Path) -> None:
    """Have Spark stream what is new in a table into Parquet files, from where it ended last."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "streamed"))
    )
    query.awaitTermination()


def streamed(folder: Path) -> pa.Table:
    files = (folder / "streamed").glob("*.parquet")
    return pa.concat_tables([pq.ParquetFile(path).read() for path in files])


def _jars() -> list[Path]:
    return [jar for name in _JARS for jar in resolve(name)]
