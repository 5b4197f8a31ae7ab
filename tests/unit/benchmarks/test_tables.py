"""Suite tables: each kind of table is held against Structured Streaming into the same kind."""

import json

import pytest

from benchmarks import tables
from benchmarks.tables_variants import VARIANTS

RATES = {
    "structured_iceberg": 100.0, "local_iceberg": 310.0, "structured_parquet": 200.0,
    "local_spool": 320.0,
}  # fmt: skip


def test_every_variant_of_the_suite_is_there():
    assert list(VARIANTS) == list(tables.VARIANTS) == list(RATES)


def test_each_is_held_against_what_writes_the_same_kind_of_table(fake_bench):
    bench = fake_bench(RATES)
    facts = tables.run(bench).json
    assert facts["suite"] == "tables"
    assert facts["ratio"] == {"local_iceberg": 3.1, "local_spool": 1.6}
    assert facts["cpu_ratio"]["local_spool"] == 0.625
    assert facts["against"]["local_spool"] == "structured_parquet"
    assert {name: goal["met"] for name, goal in facts["goals"].items()} == {
        "local_iceberg: rate": True, "local_spool: rate": True,
    }  # fmt: skip
    assert bench.profiled == ["local_iceberg"]
    json.dumps(facts)


def test_variants_that_make_other_rows_end_the_suite(fake_bench):
    with pytest.raises(SystemExit, match="do not make the same rows"):
        tables.run(fake_bench(RATES, odd="structured_parquet"))
