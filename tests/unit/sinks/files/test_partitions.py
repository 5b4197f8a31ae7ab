"""Which columns rows can be partitioned by."""

import pyarrow as pa
import pytest

from sinks.files.layout import can_partition
from sinks.files.partitions import check_partitions
from topology.errors import InvalidSchema

SCHEMA = pa.schema({"n": pa.int64(), "place": pa.string(), "raw": pa.binary()})


@pytest.mark.parametrize("names", [[], ["n"], ["place", "n"]])
def test_columns_whose_values_have_a_spelling_may_be_partitions(names: list[str]) -> None:
    check_partitions("orders", SCHEMA, names, can_partition, leaves_some=True)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (
            ["x"],
            r"'orders': partition_by is \['x'\]; allowed are some of the columns n, place, raw",
        ),
        (["n", "n"], "allowed are some of the columns n, place, raw, each once"),
        (["n", "place", "raw"], "a column that is no partition is needed"),
        (["raw"], "column 'raw' is binary, whose values are no partitions"),
    ],
)
def test_others_are_refused(names: list[str], reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        check_partitions("orders", SCHEMA, names, can_partition, leaves_some=True)


def test_all_columns_may_be_partitions_where_files_have_them_all_the_same() -> None:
    schema = SCHEMA.remove(2)
    check_partitions("orders", schema, ["n", "place"], can_partition, leaves_some=False)
