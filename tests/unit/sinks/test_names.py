import os
import re
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sinks import DeltaSink, IcebergSink, SparkSink
from sinks.names import checked_table, is_absolute, local_path, table_folder, table_path
from sinks.storage import Storage
from tests.support.batches import SCHEMA
from topology.errors import InvalidSchema, SinkFailed
from topology.sink import SinkContext

ROOT = Path("/data/ware house#1%2e")
names = st.one_of(
    st.text(max_size=12),
    st.lists(st.sampled_from(["..", ".", "", "a", "é", "%2e%2e", "~", "\\", "a b", "?", "#", "\0"]))
    .map("/".join)
    .filter(lambda name: not name.startswith("/")),
)


@given(names)
@example("a/../../b")
@example("..")
@example("%2e%2e/b")
@example("%2E%2E%2Fb")
@example("a#/../..")
@example("a?x=1/..")
@example("..\\b")
@example("file:..")
@example("\0")
def test_a_name_is_refused_or_is_a_place_below_the_warehouse(name):
    try:
        checked_table(name)
    except InvalidSchema:
        return
    if is_absolute(name):
        return
    for warehouse in (str(ROOT), f"{ROOT}/", f"file://{ROOT}", f"file:{ROOT}"):
        place = local_path(table_path(warehouse, name))
        assert place is not None
        assert Path(os.path.normpath(place)) == place
        assert place != ROOT
        assert place.is_relative_to(ROOT)
        assert place.relative_to(ROOT) == Path(name)


@pytest.mark.parametrize(
    "name", ["orders", "shop/orders", "große Aufträge", "a%41", "v1..2", "a#b", "it's `x`", "a=b/c"]
)
def test_a_name_of_a_place_below_the_warehouse_is_taken_as_it_is(name):
    assert checked_table(name) == name
    assert table_path("s3a://bucket/lake/", name) == f"s3a://bucket/lake/{name}"
    assert table_path("/lake", name) == f"file:///lake/{name}"
    assert local_path(table_path("/lake", name)) == Path("/lake") / name


@pytest.mark.parametrize("name", ["/lake/orders", "s3a://bucket/orders", "file:///lake/orders"])
def test_an_absolute_path_and_a_uri_need_no_warehouse(name):
    assert checked_table(name) == name
    assert is_absolute(name)
    assert table_path("/elsewhere", name).endswith(name)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", "it is empty"),
        ("..", "found '..'"),
        ("a/../../b", "found '..'"),
        ("/lake/../etc", "found '..'"),
        ("s3a://bucket/../other", "found '..'"),
        ("a//b", "found an empty part"),
        ("a/", "found an empty part"),
        (".", "found the part '.'"),
        (".spool/x", "found the part '.spool'"),
        ("orders/_delta_log", "found the part '_delta_log'"),
        ("a\0b", r"the character '\x00'"),
        ("/lake/a\nb", r"the character '\n'"),
        ("a\ud800", "the character"),
        ("orders:2026", "found ':', but no URI"),
        ("order*", "found '*'"),
        ("a\\b", "found '\\\\'"),
        (7, "found int"),
        (Path("a"), "found PosixPath"),
    ],
)
def test_a_name_that_is_refused_says_why_and_what_is_allowed(name, found):
    with pytest.raises(InvalidSchema, match="expected a path below the warehouse") as caught:
        checked_table(name)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.field("", pa.int64()), "it is empty"),
        (pa.field("a\0b", pa.int64()), r"found the character '\x00'"),
        (pa.field("a\n", pa.int64()), r"found the character '\n'"),
        (pa.field("a" * 256, pa.int64()), "found 256 characters"),
        (pa.field("d", pa.decimal128(5, 10)), "found decimal128(5, 10)"),
        (pa.field("d", pa.decimal128(5, -1)), "found decimal128(5, -1)"),
        (pa.field("s", pa.list_(pa.struct([("", pa.int64())]))), "it is empty"),
        (pa.field("s", pa.map_(pa.string(), pa.decimal128(1, 2))), "found decimal128(1, 2)"),
        (pa.field("s", pa.dictionary(pa.int8(), pa.decimal128(1, 2))), "found decimal128(1, 2)"),
    ],
)
def test_column_that_no_file_can_have_is_refused_when_it_is_named(column, found):
    schema = pa.schema([pa.field("n", pa.int64()), column])
    for kind in (DeltaSink, IcebergSink, partial(SparkSink, format="parquet")):
        with pytest.raises(InvalidSchema, match=f"table 'orders'.*{re.escape(found)}.*expected"):
            kind("orders", schema=schema)


KINDS = [DeltaSink, partial(SparkSink, format="parquet")]


def opened(make, warehouse, table="orders"):
    """Open a sink with a Spark that nothing is asked of."""
    context = SinkContext("p", "s", {}, Storage(str(warehouse)), Mock(spec=[]))
    make(table, schema=SCHEMA).open(context)


@pytest.fixture
def lake(tmp_path):
    """A warehouse, beside which is a folder `elsewhere`."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("table", ["orders", "orders/new", "shop/orders"])
def test_a_table_that_a_link_takes_out_of_the_warehouse_is_refused(make, table, lake):
    elsewhere = lake.parent / "elsewhere"
    (lake / "shop").mkdir()
    (lake / "orders").symlink_to(elsewhere)
    (lake / "shop" / "orders").symlink_to("../../elsewhere")
    leads = f"table '{table}': {lake / table} leads to {elsewhere}"
    with pytest.raises(SinkFailed, match=f"{leads}.*not below {lake}"):
        opened(make, lake, table)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("inner", ["_delta_log", "metadata", "data"])
def test_a_table_whose_log_is_elsewhere_is_refused(make, inner, lake):
    for table in (lake / "orders", lake.parent / "absolute"):
        table.mkdir()
        (table / inner).symlink_to(lake.parent / "elsewhere")
        with pytest.raises(SinkFailed, match=f"/{inner} leads to .*/elsewhere, not below {table}"):
            opened(make, lake, "orders" if table.parent == lake else str(table))


def test_the_warehouse_itself_may_be_a_link(lake):
    (lake.parent / "link").symlink_to(lake)
    (lake / "real").mkdir()
    (lake / "orders").symlink_to("real")
    for warehouse in (lake.parent / "link", lake):
        for table in ("orders", "orders/new", "other"):
            for place in (str(warehouse), f"file://{warehouse}/"):
                assert table_folder(place, table) == warehouse / table
    assert table_folder(str(lake), str(lake.parent / "link")) == lake.parent / "link"
    assert table_folder("s3a://bucket/lake", "orders") is None


def test_a_table_that_a_link_makes_the_warehouse_itself_is_refused(lake):
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
def test_a_table_of_another_kind_is_refused(make, log, kind, lake):
    (lake / "orders" / log).mkdir(parents=True)
    if kind.endswith(getattr(make, "__name__", "SparkSink")):
        return
    with pytest.raises(SinkFailed, match=f"is an? {kind}"):
        opened(make, lake)
