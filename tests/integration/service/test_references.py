"""Reference tables in the whole service: loaded, looked into by bolts, and changed. No JVM."""

import os
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from signal import SIGTERM

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.acceptance import processes
from tests.acceptance.harness import Run
from tests.acceptance.trial import Trial

pytestmark = pytest.mark.integration

TOPOLOGIES = "tests.acceptance.runtime"
RECORDS = 20_000  # more than the rate limit lets pass while the test runs
CODES = 3  # that records have; the tables have the first two
SOME_ROWS = 30


@pytest.fixture(autouse=True)
def records(trial):
    trial.publish(RECORDS)


def test_reference_keeps_old_rows_if_a_refresh_fails(trial):
    _write(trial.folder, "Oslo", "Rome")
    (trial.folder / "countries.csv").write_text("code,name\n0,Norway\n1,Italy\n")
    codes = pa.array([0, 1], pa.int32())
    write_deltalake(trial.folder / "towns.delta", pa.table({"code": codes, "name": ["O", "R"]}))
    run = trial.start("enriched", config=_config(trial))
    _wait_for_rows(trial, run, "Oslo")

    _write(trial.folder, "Oslo-Gardermoen", "Fiumicino")
    _wait_for_rows(trial, run, "Oslo-Gardermoen")

    _replace(trial.folder, b"this is no Parquet")
    run.until("a refresh fails", lambda: run.events("reference_refresh_failed"))
    _wait_for_rows(trial, run, "Oslo-Gardermoen")

    _write(trial.folder, "Torp", "Ciampino")
    _wait_for_rows(trial, run, "Torp")
    assert processes.java_children(run.pid) == []
    run.send(SIGTERM)
    assert run.wait() == 0, run.tail()

    rows = _by_offset(trial, "looked-up")
    assert rows == _by_offset(trial, "joined"), "a record has one load, whoever looks"
    assert list(rows) == list(range(trial.stored()[0]))
    first = [name for offset, name in rows.items() if offset % CODES == 0]
    second = [name for offset, name in rows.items() if offset % CODES == 1]
    assert [name for name, _ in groupby(first)] == ["Oslo", "Oslo-Gardermoen", "Torp"]
    assert [name for name, _ in groupby(second)] == ["Rome", "Fiumicino", "Ciampino"]
    assert {name for offset, name in rows.items() if offset % CODES == 2} == {"nowhere"}
    named = DeltaTable(trial.folder / "named").to_pyarrow_table().to_pylist()
    assert sorted(row["offset"] for row in named) == list(rows)
    assert {(row["offset"] % CODES, row["country"], row["town"]) for row in named} == {
        (0, "Norway", "O"),
        (1, "Italy", "R"),
        (2, "nowhere", "nowhere"),
    }


def test_missing_reference_table_ends_the_start_with_one_line(trial):
    run = trial.start("enriched", config=_config(trial))
    assert run.wait() == 1
    [line] = [line for line in run.errors.splitlines() if not line.startswith("{")]
    assert line.startswith("headrace: reference 'airports': parquet 'airports.parquet': ")
    assert "does not exist" in line
    assert trial.stored() == {}
    assert trial.rows("looked-up").total() == 0


def _config(trial: Trial) -> Mapping[str, Mapping[str, object]]:
    return {"storage": {"warehouse": str(trial.folder)}}


def _write(folder: Path, first: str, second: str) -> None:
    table = pa.table({"code": pa.array([0, 1], pa.int64()), "name": [first, second]})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    _replace(folder, buffer.getvalue().to_pybytes())


def _replace(folder: Path, content: bytes) -> None:
    new = folder / "new"
    new.write_bytes(content)
    os.replace(new, folder / "airports.parquet")  # noqa: PTH105 - it is there already


def _wait_for_rows(trial: Trial, run: Run, name: str) -> None:
    """Wait for some more rows, of which the last have this name."""
    enough = trial.written(run, "looked-up") + SOME_ROWS

    def come() -> bool:
        rows = trial.notes("looked-up", run)
        return len(rows) >= enough and any(name in row.split() for row in rows[-CODES:])

    run.until(f"rows with {name}", come)


def _by_offset(trial: Trial, sink: str) -> dict[int, str]:
    """The name in each record's row, in the order of the records. Each has one row."""
    rows = trial.rows(sink)
    assert set(rows.values()) == {1}
    pairs = (row.split(" ", 1) for row in rows)
    return dict(sorted((int(place.split(":")[1]), name) for place, name in pairs))
