"""Suite spark: what is held against what, and that all variants do the same work."""

import json
from types import SimpleNamespace

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import spark
from benchmarks.enrich_variants import keep_large
from benchmarks.options import Options
from benchmarks.order_table import ORDER, PRICED, Contents, contents
from benchmarks.orders import LEAST_TOTAL, Orders
from benchmarks.spark_variants import VARIANTS, Price, PriceColumns
from headrace import SKIP, Reject

RATES = {
    "structured": 100.0, "local_vectorised": 420.0, "local_functions": 200.0,
    "local_at_least_once": 500.0,
}  # fmt: skip


class FakeBench:
    """Gives figures that were not measured."""

    options = Options()
    servers = SimpleNamespace()

    def __init__(self, odd=None):
        self.odd = odd
        self.profiled = []

    def publish(self, topic, value_of, records):
        pass

    def rounds(self, module, variants, topic, records, *, rounds, profile=()):
        self.profiled = list(profile)
        return {name: [self._figures(name)] * rounds for name in variants}

    def _figures(self, name):
        rate = RATES[name]
        return {
            "per_second": rate, "cpu_us": 1_000 / rate,
            "rows": 11, "order_ids": 7, "cents": 9 if name == self.odd else 8, "open_seconds": 1.5,
        }  # fmt: skip


def orders(count):
    value = Orders().value
    return [orjson.loads(value(number)) for number in range(count)]


def test_every_variant_of_the_suite_is_there():
    assert list(VARIANTS) == list(spark.VARIANTS) == list(RATES)


def test_everything_is_held_against_structured_streaming_and_exactly_once_against_at_least_once():
    bench = FakeBench()
    facts = spark.run(bench).json
    assert facts["suite"] == "spark"
    assert facts["ratio"] == {
        "local_vectorised": 4.2, "local_functions": 2.0, "local_at_least_once": 5.0,
    }  # fmt: skip
    assert facts["cpu_ratio"]["local_vectorised"] == 0.238
    assert facts["exactly_once_cost"] == 0.16
    assert facts["rows"] == 11
    assert {name: goal["met"] for name, goal in facts["goals"].items()} == {
        "local_vectorised: rate": True,
        "local_functions: rate": False,
        "local_vectorised: CPU": True,
        "exactly once: rate of at least once": False,
    }
    assert bench.profiled == ["local_vectorised", "local_functions"]
    json.dumps(facts)


def test_variants_that_make_other_rows_end_the_suite():
    with pytest.raises(SystemExit, match="do not make the same rows"):
        spark.run(FakeBench(odd="local_functions"))


def test_columns_and_functions_price_alike():
    given = orders(500)
    price = Price()
    price.open()
    by_function = [price.process(order) for order in given]
    kept = [row for row in by_function if keep_large.process(row) is not SKIP]
    batch = pa.RecordBatch.from_pylist(given, schema=ORDER)
    lineage = batch.append_column("lineage", pa.array(range(500), pa.int64()))
    by_columns = PriceColumns().price(lineage)
    assert by_columns.schema.names == [*PRICED.names, "lineage"]
    assert by_columns.drop_columns(["lineage"]).to_pylist() == kept
    assert 0 < len(kept) < 500
    assert all(row["total"] >= LEAST_TOTAL for row in kept)


def test_columns_reject_an_unknown_user():
    (order,) = orders(1)
    batch = pa.RecordBatch.from_pylist([order | {"user_id": 1, "price": 99.0}], schema=ORDER)
    with pytest.raises(Reject, match="no such user: 1"):
        PriceColumns().price(batch)


def test_a_table_holds_what_its_log_has_added_and_not_removed(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    rows = {"a b": ([1, 2], [0.1, 0.2]), "c": ([5], [50.25]), "d": ([9], [9.0])}
    for name, (ids, totals) in rows.items():
        columns = {"order_id": ids, "total": totals, "sku": ["x"] * len(ids)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    commits = [
        [{"metaData": {}}, {"add": {"path": "a%20b.parquet"}}, {"add": {"path": "d.parquet"}}],
        [{"remove": {"path": "d.parquet"}}, {"add": {"path": "c.parquet"}}],
    ]
    for version, actions in enumerate(commits):
        text = "\n".join(map(json.dumps, actions))
        (tmp_path / "_delta_log" / f"{version:020d}.json").write_text(text)
    assert contents(tmp_path) == Contents(rows=3, order_ids=8, cents=5_055)
