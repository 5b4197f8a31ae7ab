"""An order's delay is from its own millisecond to the commit that names its file."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.delays import delays
from benchmarks.orders import FIRST_ORDER

SECOND = 1_000


@pytest.fixture
def table(tmp_path):
    """Five orders, made at second 10 and each a second later; commits at seconds 12 and 20."""
    (tmp_path / "_delta_log").mkdir()
    commit(tmp_path, 0, [], at=1)
    commit(tmp_path, 1, [0, 1], at=12)
    commit(tmp_path, 2, [2, 3, 4], at=20)
    return tmp_path


def commit(table, version, numbers, *, at):
    actions = [{"commitInfo": {}}]
    if numbers:
        columns = {
            "order_id": [FIRST_ORDER + number for number in numbers],
            "ts": [(10 + number) * SECOND for number in numbers],
        }
        pq.write_table(pa.table(columns), table / f"part {version}.parquet")
        actions.append({"add": {"path": f"part%20{version}.parquet"}})
    entry = table / "_delta_log" / f"{version:020d}.json"
    entry.write_text("\n".join(map(json.dumps, actions)))
    os.utime(entry, (at, at))


def test_all_that_a_commit_has_made_visible_waited_for_it(table):
    found = delays(table, since=0)  # 2, 1, 8, 7 and 6 seconds
    assert found["p50_ms"] == 6 * SECOND
    assert found["most_ms"] == 8 * SECOND
    assert found["p99_ms"] == pytest.approx(7.96 * SECOND)
    assert found["commits"] == 2


def test_the_first_orders_are_not_counted(table):
    assert delays(table, since=3)["p50_ms"] == 6.5 * SECOND


def test_a_table_without_one_that_counts_is_refused(table):
    with pytest.raises(SystemExit, match="no order from number 5 on"):
        delays(table, since=5)
