"""Suites tables and tables-s3: what is held against what, and that all do the same work."""

import json
from types import SimpleNamespace

import orjson
import pyarrow as pa
import pytest

from benchmarks import orders_topologies, tables, tables_s3
from benchmarks.enrich_variants import keep_large
from benchmarks.order_table import ORDER, PRICED
from benchmarks.orders import LEAST_TOTAL, Orders
from benchmarks.orders_topologies import FLOWS, PriceColumns, PriceWhole
from benchmarks.tables_variants import VARIANTS
from headrace import SKIP, Reject
from service.loading import load_topology

RATES = {
    "structured_delta": 100.0, "delta_vectorised": 600.0, "delta_functions": 200.0,
    "delta_large": 600.0, "delta_delayed": 540.0, "engine_vectorised": 450.0,
    "engine_functions": 260.0, "spark_sink": 210.0, "spark_sink_functions": 160.0,
    "structured_iceberg": 200.0, "iceberg_vectorised": 900.0, "iceberg_functions": 600.0,
    "write_deltalake": 400.0, "sink_alone": 360.0,
}  # fmt: skip


def orders(count):
    value = Orders().value
    return [orjson.loads(value(number)) for number in range(count)]


def test_every_variant_of_the_suites_is_there():
    used = {*tables.VARIANTS, *tables.ALONE, *tables.ALONE.values(), *tables_s3.VARIANTS}
    used |= {tables_s3.DELAYED, tables_s3.LARGE}
    assert used == set(VARIANTS) == set(RATES)


def test_each_is_held_against_what_writes_the_same_kind_of_table(fake_bench):
    bench = fake_bench(RATES)
    facts = tables.run(bench).json
    assert facts["suite"] == "tables"
    assert facts["ratio"] == {
        "delta_vectorised": 6.0, "delta_functions": 2.0, "iceberg_vectorised": 4.5,
        "iceberg_functions": 3.0, "engine_vectorised": 4.5, "engine_functions": 2.6,
        "spark_sink": 2.1, "spark_sink_functions": 1.6, "bare_loop": 0.9,
    }  # fmt: skip
    assert facts["spread"]["bare_loop"] == [0.9, 0.9]
    assert set(facts["spread"]) == set(facts["cpu_ratio"]) == set(facts["ratio"])
    assert [name for name, goal in facts["goals"].items() if not goal["met"]] == [
        "delta_functions: rate", "delta_vectorised: CPU", "delta_functions: CPU",
    ]  # fmt: skip
    assert bench.profiled == ["delta_vectorised", "delta_functions"]
    json.dumps(facts)


def test_on_an_object_store_one_is_held_against_itself_without_delays(fake_bench, monkeypatch):
    store = SimpleNamespace(port=1, url="http://store", open=lambda: None, close=lambda: None)
    slow = SimpleNamespace(address="slow", close=lambda: None)
    monkeypatch.setattr(tables_s3, "EmbeddedSeaweed", lambda _folder: store)
    monkeypatch.setattr(tables_s3, "Relay", lambda _port: slow)
    bench = fake_bench(RATES)
    facts = tables_s3.run(bench).json
    assert facts["suite"] == "tables-s3"
    assert facts["ratio"] == {
        "s3_delta_vectorised": 6.0, "s3_delta_functions": 2.0, "s3_iceberg_vectorised": 4.5,
        "s3_iceberg_functions": 3.0, "s3_delta_delayed": 0.9,
    }  # fmt: skip
    assert slow.delay == 0.1  # each way
    assert bench.endpoints.pop("delta_delayed") == "http://slow"
    assert set(bench.endpoints.values()) == {"http://store"}
    assert list(facts["goals"]) == [f"{name}: rate" for name in facts["ratio"]]


@pytest.mark.parametrize("odd", ["delta_functions", "structured_iceberg", "sink_alone"])
def test_variants_that_make_other_rows_end_the_suite(fake_bench, odd):
    with pytest.raises(SystemExit, match="do not make the same rows"):
        tables.run(fake_bench(RATES, odd=odd))


@pytest.mark.parametrize("name", [*FLOWS, "growing"])
def test_executors_and_the_command_line_find_topologies_by_name(name):
    load_topology(f"{orders_topologies.MODULE}:{name}").validate()


def test_columns_and_functions_price_alike():
    given = orders(500)
    price = PriceWhole()
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
