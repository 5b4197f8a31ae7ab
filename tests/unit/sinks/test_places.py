"""Where tables lie: no link leads out of the warehouse, no table into one of another kind."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks import DeltaSink, SparkSink
from sinks.names import table_folder
from sinks.storage import Storage
from topology.errors import SinkFailed
from topology.sink import Sink, SinkContext

SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})
KINDS = [DeltaSink, partial(SparkSink, format="parquet")]
Make = Callable[..., Sink[Any]]


class NoSpark:
    """A Spark that nothing is asked of."""

    def run(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("it was asked")


def opened(make: Make, warehouse: Path, table: str = "orders") -> None:
    spark: Any = NoSpark()
    make(table, schema=SCHEMA).open(
        SinkContext("pipeline", "sink", {}, Storage(str(warehouse)), spark)
    )


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A warehouse, beside which is a folder `elsewhere`."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("table", ["orders", "orders/new", "shop/orders"])
def test_a_table_that_a_link_takes_out_of_the_warehouse_is_refused(
    make: Make, table: str, lake: Path
) -> None:
    elsewhere = lake.parent / "elsewhere"
    (lake / "shop").mkdir()
    (lake / "orders").symlink_to(elsewhere)
    (lake / "shop" / "orders").symlink_to("../../elsewhere")
    with pytest.raises(SinkFailed) as caught:
        opened(make, lake, table)
    assert f"table '{table}': {lake / table} leads to {elsewhere}" in str(caught.value)
    assert f"not below {lake}" in str(caught.value)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("inner", ["_delta_log", "metadata", "data"])
def test_a_table_whose_log_is_elsewhere_is_refused(make: Make, inner: str, lake: Path) -> None:
    for table in (lake / "orders", lake.parent / "absolute"):
        table.mkdir()
        (table / inner).symlink_to(lake.parent / "elsewhere")
        with pytest.raises(SinkFailed, match=f"/{inner} leads to .*/elsewhere, not below {table}"):
            opened(make, lake, "orders" if table.parent == lake else str(table))


def test_the_warehouse_itself_may_be_a_link(lake: Path) -> None:
    (lake.parent / "link").symlink_to(lake)
    (lake / "real").mkdir()
    (lake / "orders").symlink_to("real")
    for warehouse in (lake.parent / "link", lake):
        for table in ("orders", "orders/new", "other"):
            for place in (str(warehouse), f"file://{warehouse}/"):
                assert table_folder(place, table) == warehouse / table
    assert table_folder(str(lake), str(lake.parent / "link")) == lake.parent / "link"
    assert table_folder("s3a://bucket/lake", "orders") is None


def test_a_table_that_a_link_makes_the_warehouse_itself_is_refused(lake: Path) -> None:
    (lake / "orders").symlink_to(".")
    with pytest.raises(SinkFailed, match=f"leads to {lake}"):
        table_folder(str(lake), "orders")


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("_delta_log", "Delta table; use DeltaSink"),
        ("metadata/v1.metadata.json", "Iceberg table; use IcebergSink"),
        ("metadata/version-hint.text", "Iceberg table; use IcebergSink"),
    ],
)
@pytest.mark.parametrize("make", KINDS)
def test_a_table_of_another_kind_is_refused(make: Make, log: str, kind: str, lake: Path) -> None:
    (lake / "orders" / log).mkdir(parents=True)
    if kind.endswith(getattr(make, "__name__", "SparkSink")):  # type: ignore[attr-defined]
        return
    with pytest.raises(SinkFailed, match=f"is an? {kind}"):
        opened(make, lake)
