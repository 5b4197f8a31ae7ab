"""A table's files are those that its own log names, whatever else lies beside them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.kinds import delta_files, parquet_files
from benchmarks.order_table import Contents, contents


def write(folder, name, ids, totals):
    columns = {"order_id": ids, "total": totals, "sku": ["x"] * len(ids)}
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def test_a_delta_table_has_what_its_log_has_added_and_not_removed(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    write(tmp_path, "a b", [1, 2], [0.1, 0.2])
    write(tmp_path, "c", [5], [50.25])
    write(tmp_path, "d", [9], [9.0])
    write(tmp_path, "orphan", [9], [9.0])
    commits = [
        [{"metaData": {}}, {"add": {"path": "a%20b.parquet"}}, {"add": {"path": "d.parquet"}}],
        [{"remove": {"path": "d.parquet"}}, {"add": {"path": "c.parquet"}}],
    ]
    for version, actions in enumerate(commits):
        text = "\n".join(map(json.dumps, actions))
        (tmp_path / "_delta_log" / f"{version:020d}.json").write_text(text)
    assert contents(delta_files(tmp_path)) == Contents(rows=3, order_ids=8, cents=5_055)


def test_structured_streaming_s_folder_has_what_its_log_names_once(tmp_path):
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    write(tmp_path, "a b", [1], [1.0])
    write(tmp_path, "c", [2], [2.0])
    write(tmp_path, "orphan", [9], [9.0])
    first = {"path": f"file://{tmp_path}/a%20b.parquet", "action": "add"}
    second = {"path": f"file://{tmp_path}/c.parquet", "action": "add"}
    entries = {"0": [first], "1.compact": [first, second], ".1.compact.crc": [], "2": []}
    for name, actions in entries.items():
        (log / name).write_text("\n".join(["v1", *map(json.dumps, actions)]))
    assert contents(parquet_files(tmp_path)) == Contents(rows=2, order_ids=3, cents=300)


def test_a_folder_without_a_log_has_all_that_is_in_it(tmp_path):
    write(tmp_path, "a", [1], [1.0])
    write(tmp_path, "b", [2], [2.5])
    (tmp_path / "_SUCCESS").touch()
    assert contents(parquet_files(tmp_path)) == Contents(rows=2, order_ids=3, cents=350)
