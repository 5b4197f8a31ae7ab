"""Suite spark: what is held against what, and that all variants do the same work."""

import json

import orjson
import pyarrow as pa
import pytest

from benchmarks import spark, spark_topologies
from benchmarks.enrich_variants import keep_large
from benchmarks.order_table import ORDER, PRICED
from benchmarks.orders import LEAST_TOTAL, Orders
from benchmarks.spark_topologies import MAKE, PriceColumns, PriceWhole
from benchmarks.spark_variants import VARIANTS
from headrace import SKIP, Reject
from service.loading import load_topology

RATES = {
    "structured": 100.0, "local_vectorised": 420.0, "local_functions": 200.0,
    "spark_vectorised": 330.0,
    "spark_vectorised_200k": 250.0, "spark_functions": 210.0,
}  # fmt: skip


def orders(count):
    value = Orders().value
    return [orjson.loads(value(number)) for number in range(count)]


def test_every_variant_of_the_suite_is_there():
    assert list(VARIANTS) == list(spark.VARIANTS) == list(RATES)


def test_everything_is_held_against_structured_streaming(fake_bench):
    bench = fake_bench(RATES)
    facts = spark.run(bench).json
    assert facts["suite"] == "spark"
    assert facts["ratio"] == {
        "local_vectorised": 4.2, "local_functions": 2.0,
        "spark_vectorised": 3.3, "spark_vectorised_200k": 2.5,
        "spark_functions": 2.1,
    }  # fmt: skip
    assert facts["cpu_ratio"]["local_vectorised"] == 0.238
    assert facts["rows"] == 11
    assert set(facts["batches"]) == set(facts["open_seconds"]) == set(RATES)
    assert {name: goal["met"] for name, goal in facts["goals"].items()} == {
        "local_vectorised: rate": True,
        "local_functions: rate": False,
        "spark_vectorised: rate": True,
        "spark_functions: rate": True,
        "local_vectorised: CPU": True,
    }
    assert bench.profiled == ["local_vectorised", "local_functions"]
    json.dumps(facts)


def test_what_a_transaction_costs_is_told_apart_from_what_a_record_costs(fake_bench):
    rates = RATES | {"spark_vectorised": 1_000 / 3.1, "spark_vectorised_200k": 1_000 / 3.5}
    scaling = spark.run(fake_bench(rates)).json["scaling"]
    assert scaling["transactions"] == [10, 2]
    assert scaling["cpu_us_per_record"] == 3.0
    assert scaling["cpu_ms_per_transaction"] == 100.0


@pytest.mark.parametrize("name", MAKE)
def test_executors_find_every_topology_by_its_name(name):
    found = load_topology(f"{spark_topologies.MODULE}:{name}")
    assert found.name == MAKE[name]().name
    found.validate()


def test_variants_that_make_other_rows_end_the_suite(fake_bench):
    with pytest.raises(SystemExit, match="do not make the same rows"):
        spark.run(fake_bench(RATES, odd="local_functions"))


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
