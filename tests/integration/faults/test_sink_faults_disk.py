"""S02 and S03: the disk that a table lies on is full, or may not be written, and then is again.

The pipeline is the real one with the real sink, and its servers in memory. The disk is a tmpfs, so
this needs root.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from headrace import Record, bolt
from headrace.sinks import DeltaSink, IcebergSink, ManifestSink, ParquetSink, SinkContext
from service.figures import snapshot_of
from service.health import HealthCheck
from sinks.spark.driver import SparkDriver
from sinks.tries import WriteRetries
from tests.acceptance import evidence, table_files
from tests.worlds.running import Works
from tests.worlds.small_disk import SmallDisk, immutable
from topology.transactional import Staged

pytestmark = [
    pytest.mark.faults,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECONDS = 120.0
QUICK = WriteRetries(first_seconds=0.05, longest_seconds=0.5)


class Row(TypedDict):
    number: int
    text: str


@bolt
def row_of(record: Record) -> Row:
    return Row(number=record.offset, text=(record.value or b"").decode())


def of_parquet(folder: Path) -> pa.Table:
    return pq.read_table(folder)


SINKS: dict[str, tuple[Callable[..., Any], Callable[[Path], pa.Table]]] = {
    "delta": (DeltaSink, evidence.read_table),
    "iceberg": (IcebergSink, table_files.of_iceberg),
    "manifest": (ManifestSink, table_files.of_manifest),
    "parquet": (ParquetSink, of_parquet),
}
REFUSED = {"parquet": "Mkdirs failed to create"}  # Hadoop does not say why
KEEP_TRANSACTIONS = ["delta", "iceberg", "manifest"]


class Plant(Works):
    """A pipeline into a table in `warehouse`."""

    def __init__(self, kind: str, warehouse: Path, spark: SparkDriver, guarantee: str) -> None:
        make, self._read = SINKS[kind]
        self.folder = warehouse / "rows"
        self.table = make("rows", schema=Row)
        exactly_once = guarantee == "exactly-once"
        super().__init__(
            row_of, sinks=[self.table], batch_rows=50, write_retries=QUICK,
            exactly_once="transactional" if exactly_once else None,
        )  # fmt: skip
        self.table.open(
            SinkContext("faults", "rows", {}, str(warehouse), spark, exactly_once=exactly_once)
        )

    def until(self, ask: Callable[[], bool]) -> None:
        """Spark takes longer than what others do in memory."""
        end = time.monotonic() + SECONDS
        while not ask():
            assert time.monotonic() < end, f"it never came about: {self.ledger}"
            self.turn()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.table.close()

    def numbers(self) -> Counter[int]:
        """How often each row is there."""
        return Counter(self._read(self.folder).column("number").to_pylist())

    def problems(self) -> tuple[str, ...]:
        """What /health/ready would say."""
        taken = snapshot_of(self, time.monotonic())
        return HealthCheck(lambda: taken, lambda: taken.taken_at).ready().problems

    def retried(self) -> int:
        """How many tries of the sink's have failed."""
        return self.pipeline.outlets[0].writer.retries


CASES = [
    *((kind, "exactly-once") for kind in KEEP_TRANSACTIONS),
    *((kind, "at-least-once") for kind in SINKS),
]


def goes_on_after(
    plant: Plant, trouble: AbstractContextManager[None], words: str, logs: list[Any]
) -> None:
    """Records wait while there is trouble, and that is told; then every row is there once."""
    plant.send(*[b"a"] * 100)
    plant.finish()
    with trouble:
        plant.send(*[b"b"] * 200)
        plant.until(lambda: plant.retried() >= 2)
        (problem,) = plant.problems()
        assert problem.startswith(f"sink '{plant.pipeline.outlets[0].step.name}' is failing: ")
        assert words in problem
        assert plant.stored == 100
        assert plant.letters_sink.letters == []
    plant.finish()
    assert plant.problems() == ()
    assert plant.numbers() == Counter(range(300))
    failed = [line for line in logs if line["event"] == "sink_write_failed"]
    assert failed
    assert all(words in line["error"] for line in failed)
    assert "sink_recovered" in {line["event"] for line in logs}


@pytest.mark.parametrize(("kind", "guarantee"), CASES)
def test_a_disk_that_is_full_pauses_the_run_and_no_row_is_lost_or_repeated(
    kind: str, guarantee: str, tmp_path: Path, spark: SparkDriver
) -> None:
    """S02, promise 15."""
    with (
        SmallDisk(tmp_path / "disk") as disk,
        Plant(kind, disk.path / "warehouse", spark, guarantee) as plant,
        capture_logs() as logs,
    ):
        goes_on_after(plant, disk.full(), "No space left on device", logs)


@pytest.mark.parametrize(("kind", "guarantee"), CASES)
def test_a_disk_that_turns_read_only_pauses_the_run_and_no_row_is_lost_or_repeated(
    kind: str, guarantee: str, tmp_path: Path, spark: SparkDriver
) -> None:
    """S03, promise 15: as a disk with errors is remounted."""
    with (
        SmallDisk(tmp_path / "disk") as disk,
        Plant(kind, disk.path / "warehouse", spark, guarantee) as plant,
        capture_logs() as logs,
    ):
        goes_on_after(plant, disk.read_only(), "Read-only file system", logs)


@pytest.mark.parametrize(("kind", "guarantee"), CASES)
def test_a_table_that_may_not_be_written_pauses_the_run_and_no_row_is_lost_or_repeated(
    kind: str, guarantee: str, tmp_path: Path, spark: SparkDriver
) -> None:
    """S03, promise 15: to root, who ignores modes, it is refused by chattr's +i."""
    with Plant(kind, tmp_path / "warehouse", spark, guarantee) as plant, capture_logs() as logs:
        goes_on_after(plant, immutable(plant.folder), REFUSED.get(kind, "not permitted"), logs)


@pytest.mark.parametrize("kind", KEEP_TRANSACTIONS)
def test_a_disk_that_is_full_between_staging_and_commit_commits_nothing_and_then_once(
    kind: str, tmp_path: Path, spark: SparkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S02: the rows are there, and no space for the log's entry."""
    with (
        SmallDisk(tmp_path / "disk") as disk,
        Plant(kind, disk.path / "warehouse", spark, "exactly-once") as plant,
        capture_logs() as logs,
    ):
        commit = plant.table.commit

        def fill_and_commit(staged: Staged) -> None:
            monkeypatch.setattr(plant.table, "commit", commit)
            disk.fill()
            commit(staged)

        plant.send(*[b"a"] * 100)
        plant.finish()
        monkeypatch.setattr(plant.table, "commit", fill_and_commit)
        plant.send(*[b"b"] * 200)
        plant.until(lambda: plant.retried() >= 2)
        assert plant.numbers() == Counter(range(100))
        assert plant.stored == 100
        disk.free()
        plant.finish()
        assert plant.numbers() == Counter(range(300))
    failed = [line for line in logs if line["event"] == "sink_write_failed"]
    assert "commit" in {line["task"] for line in failed}
    assert all("No space left on device" in line["error"] for line in failed)
