"""How a Delta table is written, by what it is like and what is to be written."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from sinks.files.data_file import DataFileWriter
from sinks.files.layout import Layout
from sinks.spark.delta.facts import Facts, append_obstacle, upsert_obstacle
from sinks.spark.delta.keyed import KeyedRows
from sinks.spark.delta.merge import Merge
from sinks.spark.delta.reading import FileReader
from sinks.spark.existing import differences
from topology.errors import SinkFailed


class ColumnsMissing(Exception):
    """The table lacks columns that it is to get first."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


@dataclass(frozen=True, slots=True)
class Wish:
    """What a sink wants to write to its table."""

    schema: pa.Schema  # of what is stored
    spark_schema: Any  # the same, as Spark has it
    partition_by: tuple[str, ...]  # nothing: as the table is
    keyed: KeyedRows | None
    adds_columns: bool


class Way(NamedTuple):
    """How the table, as it was examined last, is written."""

    facts: Facts
    obstacle: str | None  # why only Spark can append to it
    files: DataFileWriter
    merge: Merge | None  # with a key, and without an obstacle


def way_to(facts: Facts, wish: Wish, folder: Path, refusal: Callable[[], str | None]) -> Way:
    """How to write a table in this folder; `refusal` says why Kernel will not.

    Raises SinkFailed when the table has other columns than the rows, and ColumnsMissing when
    it only lacks some that are to be added.
    """
    _check_columns(facts, wish)
    obstacle = append_obstacle(facts, wish.schema)
    if obstacle is None and wish.keyed is not None:
        obstacle = upsert_obstacle(facts, wish.schema, wish.keyed.key)
    obstacle = obstacle or refusal()
    files = DataFileWriter(folder, Layout(facts.partition_by))
    merge = None
    if wish.keyed is not None and obstacle is None:
        merge = Merge(FileReader(folder, facts), files, wish.keyed)
    return Way(facts, obstacle, files, merge)


def _check_columns(facts: Facts, wish: Wish) -> None:
    from pyspark.sql.types import StructType  # noqa: PLC0415 - see sinks/__init__

    found = StructType.fromJson(json.loads(facts.schema))
    wrong = differences(found, wish.spark_schema, ignored=(), added_columns=wish.adds_columns)
    if wish.partition_by and wish.partition_by != facts.partition_by:
        names = ", ".join(facts.partition_by) or "nothing"
        wrong.append(
            f"partition_by is {list(wish.partition_by)}; the table is partitioned by {names}"
        )
    if wrong:
        raise SinkFailed("; ".join(wrong))
    missing = [name for name in wish.schema.names if name not in found.names]
    if missing:
        raise ColumnsMissing(missing)
