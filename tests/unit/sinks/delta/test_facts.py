"""Which Delta tables can be appended to without Spark, and which remember transactions."""

import json
from typing import Any

import pyarrow as pa
import pytest

from sinks.spark.delta.facts import (
    Facts,
    append_obstacle,
    transaction_obstacle,
    upsert_obstacle,
)

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("c", pa.string())])


def column(name: str, kind: Any = "long", *, nullable: bool = True, **metadata: Any) -> Any:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def facts(
    *columns: Any,
    partition_by: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
    properties: dict[str, str] | None = None,
) -> Facts:
    fields = columns or (column("n"), column("c", "string"))
    schema = json.dumps({"type": "struct", "fields": fields})
    return Facts(schema, partition_by, frozenset(features), properties or {})


def test_a_plain_table_has_no_obstacle() -> None:
    plain = facts(
        column("n", nullable=False),
        column("c", "string", comment="a comment"),
        column("only_theirs", {"type": "array", "elementType": "long", "containsNull": True}),
        features=("appendOnly", "invariants", "timestampNtz", "deletionVectors", "columnMapping"),
        properties={"delta.columnMapping.mode": "none", "delta.appendOnly": "true"},
    )
    assert append_obstacle(plain, SCHEMA) is None
    assert transaction_obstacle(plain) is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (facts(features=("rowTracking",)), "feature rowTracking"),
        (facts(features=("appendOnly", "fromTheFuture")), "feature fromTheFuture"),
        (facts(properties={"delta.columnMapping.mode": "name"}), "columnMapping.mode = name"),
        (facts(properties={"delta.constraints.positive": "n > 0"}), "constraint positive"),
        (facts(column("c", "string", nullable=False)), "'c' is NOT NULL in the table only"),
        (facts(column("other", nullable=False)), "'other' is NOT NULL in the table only"),
        (facts(column("n", **{"delta.invariants": "{}"})), "'n' has delta.invariants"),
        (facts(column("n", **{"delta.generationExpression": "1"})), "delta.generationExpression"),
        (facts(column("n", **{"delta.identity.start": 1})), "'n' has delta.identity.start"),
        (facts(column("n", CURRENT_DEFAULT="1")), "'n' has CURRENT_DEFAULT"),
        (
            facts(column("x", {"type": "array", "elementType": "long", "containsNull": False})),
            "'x' has parts that are NOT NULL",
        ),
        (
            facts(
                column(
                    "x",
                    {
                        "type": "map",
                        "keyType": "string",
                        "valueType": {"type": "struct", "fields": [column("y", nullable=False)]},
                        "valueContainsNull": True,
                    },
                )
            ),
            "'x' has parts that are NOT NULL",
        ),
        (facts(partition_by=("n", "c")), "all columns are partitions"),
    ],
)
def test_what_an_append_by_files_alone_would_break_is_named(found: Facts, reason: str) -> None:
    assert reason in str(append_obstacle(found, SCHEMA))


def test_a_partition_of_a_type_without_a_spelling_is_named() -> None:
    schema = pa.schema([("n", pa.int64()), ("b", pa.binary())])
    found = facts(column("n"), column("b", "binary"), partition_by=("b",))
    assert "column 'b' of binary" in str(append_obstacle(found, schema))


def test_a_table_that_forgets_transactions_is_named() -> None:
    name = "delta.setTransactionRetentionDuration"
    assert name in str(transaction_obstacle(facts(properties={name: "interval 1 day"})))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (facts(properties={"delta.appendOnly": "TRUE"}), "delta.appendOnly = true"),
        (
            facts(properties={"delta.enableChangeDataFeed": "true"}),
            "delta.enableChangeDataFeed = true",
        ),
        (facts(partition_by=("at",)), "key column 'at' of timestamp[us] is a partition"),
    ],
)
def test_a_table_whose_rows_cannot_be_replaced_is_named(found: Facts, reason: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us"))])
    assert reason in str(upsert_obstacle(found, schema, ["n", "at"]))


def test_rows_of_other_tables_can_be_replaced() -> None:
    found = facts(partition_by=("n", "c"), properties={"delta.appendOnly": "false"})
    assert upsert_obstacle(found, SCHEMA, ["c", "n"]) is None
    assert upsert_obstacle(facts(partition_by=("b",)), SCHEMA, ["n"]) is None
