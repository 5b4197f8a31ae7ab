"""The control of exactly once: what a group that comes again does where no txid is looked at.

`make crash` does it with processes that are killed; here it is asked of the sinks themselves.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from headrace.sinks import (
    Batch,
    DeltaSink,
    Fence,
    IcebergSink,
    Share,
    Sink,
    SinkContext,
)
from headrace.state import DeltaState, State, count
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.acceptance import evidence, table_files

pytestmark = pytest.mark.integration

LINE = "orders[0]"
SCHEMA = pa.schema([pa.field("number", pa.int64(), nullable=False), ("place", pa.string())])
OLDER, NEWER = {"number": 1, "place": "older"}, {"number": 1, "place": "newer"}


def counts(table: str) -> Any:
    return State(table, key={"number": int}, into=DeltaState(table)).sink({"n": count()})


class Case(NamedTuple):
    """A sink, how its table is read, and what two rows of one key come to in it.

    `wrong` is what they come to when the older one is written once more, behind the newer one.
    """

    sink: Callable[[str], Sink[Any]]
    read: Callable[[Path], pa.Table]
    column: str
    right: list[object]
    wrong: list[object]


CASES = {
    "delta": Case(
        lambda table: DeltaSink(table, schema=SCHEMA),
        evidence.read_table, "place", ["newer", "older"], ["newer", "older", "older"],
    ),
    "delta by key": Case(
        lambda table: DeltaSink(table, schema=SCHEMA, key=["number"]),
        evidence.read_table, "place", ["newer"], ["older"],
    ),
    "iceberg": Case(
        lambda table: IcebergSink(table, schema=SCHEMA),
        table_files.of_iceberg, "place", ["newer", "older"], ["newer", "older", "older"],
    ),
    "state": Case(counts, evidence.read_table, "n", [2], [3]),
}  # fmt: skip


def group(txid: int, row: dict[str, Any], *, epoch: int = 1) -> Batch:
    share = Share(LINE, epoch, txid, 1, first=txid, end=txid + 1, digest="0" * 32, num_rows=1)
    return Batch(txid, [[row]], 1, (share,))


def commit(sink: Sink[Any], given: Batch) -> None:
    sink.commit(sink.stage(given))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_group_that_comes_again_does_harm_only_where_its_txid_is_ignored(
    case: Case, spark: SparkDriver, tmp_path: Path
) -> None:
    """Promise 14: a successor writes the older group again, as it is and without its txid."""

    def opened(table: str, *, exactly_once: bool) -> Sink[Any]:
        sink = case.sink(table)
        sink.open(
            SinkContext("p", "s", {}, Storage(str(tmp_path)), spark, exactly_once=exactly_once)
        )
        return sink

    def found(table: str) -> list[object]:
        return sorted(case.read(tmp_path / table)[case.column].to_pylist())

    first, second = (opened("as_it_is", exactly_once=True) for _ in range(2))
    first.fence([Fence(LINE, 1)])
    commit(first, group(1, OLDER))
    commit(first, group(2, NEWER))
    second.fence([Fence(LINE, 2)])
    commit(second, group(1, OLDER, epoch=2))
    assert found("as_it_is") == case.right

    without = opened("without_txid", exactly_once=False)
    for number, row in enumerate([OLDER, NEWER, OLDER]):
        without.write(Batch(number, [[row]], 1))
    assert found("without_txid") == case.wrong
    for sink in (first, second, without):
        sink.close()
