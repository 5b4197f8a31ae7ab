"""A table's files are those that its own log names, whatever else lies beside them."""

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from benchmarks.kinds import delta_files
from benchmarks.order_table import Contents, contents
from sinks.storage import Storage


def rows(ids, totals):
    return pa.table({"order_id": ids, "total": totals, "sku": ["x"] * len(ids)})


def test_a_delta_table_has_what_its_log_has_added_and_not_removed(tmp_path):
    storage, uri = Storage(str(tmp_path)), str(tmp_path / "orders")
    write_deltalake(uri, rows([9], [9.0]))
    write_deltalake(uri, rows([1, 2], [0.1, 0.2]), mode="overwrite")
    write_deltalake(uri, rows([5], [50.25]), mode="append")
    pq.write_table(rows([9], [9.0]), f"{uri}/orphan.parquet")
    assert len(DeltaTable(uri).file_uris()) == 2
    found = contents(storage, delta_files(storage, uri))
    assert found == Contents(rows=3, order_ids=8, cents=5_055)
