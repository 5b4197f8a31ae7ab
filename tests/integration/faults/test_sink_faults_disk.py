"""S02 and S03: the disk that a table lies on is full, or may not be written, and then is again.

The pipeline is the real one with the real sink, and its servers in memory. The disk is a tmpfs, so
this needs root.
"""

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.limits import SmallDisk, immutable
from tests.support.pipeline import CASES, KEEP_TRANSACTIONS, Plant
from topology.sink import Staged

pytestmark = pytest.mark.faults

REFUSED = {"parquet": "Mkdirs failed to create"}  # Hadoop does not say why


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


@pytest.mark.parametrize("words", ["No space left on device", "Read-only file system"])
@pytest.mark.parametrize(("kind", "guarantee"), CASES)
def test_full_or_read_only_disk_pauses_the_run_without_loss(
    kind, guarantee, words, tmp_path, spark
):
    """S02 and S03, promise 15: read-only as a disk with errors is remounted."""
    with (
        SmallDisk(tmp_path / "disk") as disk,
        Plant(kind, disk.path / "warehouse", spark, guarantee) as plant,
        capture_logs() as logs,
    ):
        trouble = disk.full() if words.startswith("No space") else disk.read_only()
        goes_on_after(plant, trouble, words, logs)


@pytest.mark.parametrize(("kind", "guarantee"), CASES)
def test_unwritable_table_pauses_the_run_without_loss(kind, guarantee, tmp_path, spark):
    """S03, promise 15: to root, who ignores modes, it is refused by chattr's +i."""
    with Plant(kind, tmp_path / "warehouse", spark, guarantee) as plant, capture_logs() as logs:
        goes_on_after(plant, immutable(plant.files), REFUSED.get(kind, "not permitted"), logs)


@pytest.mark.parametrize("kind", KEEP_TRANSACTIONS)
def test_disk_full_between_staging_and_commit_commits_once(kind, tmp_path, spark, monkeypatch):
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
