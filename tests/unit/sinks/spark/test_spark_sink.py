"""What SparkSink takes, and which guarantees it gives; no Spark runs."""

from typing import Any

import pyarrow as pa
import pytest

from headrace import Record, Topology, bolt
from headrace.sinks import MemoryDeadLetters, SparkSink
from topology.errors import InvalidSchema, InvalidTopology

SCHEMA = pa.schema([("n", pa.int64()), ("place", pa.string())])


@bolt
def row(record: Record) -> dict[str, Any]:
    return {"n": record.offset}


def wrote(_frame: Any, _batch: int) -> None: ...


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "allowed is either format= or write="),
        ({"format": "parquet", "write": wrote}, "allowed is either format= or write="),
        ({"write": wrote, "partition_by": "n"}, "belong to a format"),
        ({"format": "table", "options": {"a": "b"}}, "leave them out"),
        ({"format": "delta", "options": {"txnAppId": "b"}}, "'txnAppId' is set by SparkSink"),
        ({"format": "csv", "partition_by": ["x"]}, "partition_by has 'x'; allowed are n, place"),
        ({"format": "csv", "partition_by": ["n", "place"]}, "has all columns"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidSchema, match=what):
        SparkSink("orders", schema=SCHEMA, **given)


@pytest.mark.parametrize("name", ["a b", "a; DROP TABLE b", "a.b.c.d", "../a"])
def test_the_name_of_a_catalogue_table_is_one(name: str) -> None:
    with pytest.raises(InvalidSchema, match="allowed is a table's name"):
        SparkSink(name, format="table", schema=SCHEMA)


@pytest.mark.parametrize(
    ("given", "called"),
    [({"format": "parquet"}, r"\(format='parquet'\)"), ({"write": wrote}, r"\(write=…\)")],
)
def test_exactly_once_is_refused_with_the_reason(given: dict[str, Any], called: str) -> None:
    topology = Topology("orders", reliability="exactly-once")
    topology.source("in").then(row).into(SparkSink("orders", schema=SCHEMA, **given))
    topology.dead_letters.into(MemoryDeadLetters())
    with pytest.raises(InvalidTopology, match=rf"{called}.*only format='delta' keeps"):
        topology.validate()


def test_behind_a_spark_step_it_is_exactly_once_too() -> None:
    """One commit has all rows and txids of a group, so a row need not be known to be of one."""
    topology = Topology("orders", reliability="exactly-once")
    rows = topology.source("in").then(row).spark(lambda frame: frame, schema=SCHEMA)
    rows.into(SparkSink("orders", format="delta", schema=SCHEMA))
    topology.dead_letters.into(MemoryDeadLetters())
    topology.validate()


def test_each_source_brings_the_jars_that_it_needs() -> None:
    def jars(name: str = "orders", **given: Any) -> tuple[str, ...]:
        return SparkSink(name, schema=SCHEMA, **given).needs_jars

    assert jars(format="parquet") == ()
    assert jars(format="delta") == jars(format="table") == ("delta",)
    assert jars(write=wrote, jars=["iceberg"]) == ("iceberg",)
    assert jars("s3a://lake/orders", format="delta") == ("delta", "s3a")
