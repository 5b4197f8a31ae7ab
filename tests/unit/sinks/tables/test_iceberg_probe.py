"""What `headrace check` asks of a catalogue, and that it leaves nothing there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from tests.worlds.iceberg_table import Table, group
from topology.errors import SinkFailed


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path)
    yield made
    made.close()


def test_where_there_is_no_table_one_is_made_and_dropped_with_its_namespace(
    table: Table, tmp_path: Path
) -> None:
    assert table.sink().probe() == "create, load, commit to and drop a table in default"
    assert table.catalog.list_namespaces() == []
    assert [path for path in tmp_path.rglob("*") if "headrace_check" in path.name] == []


def test_a_namespace_that_is_there_stays(table: Table, tmp_path: Path) -> None:
    table.catalog.create_namespace("default")
    table.sink().probe()
    assert table.catalog.list_namespaces() == [("default",)]
    assert table.catalog.list_tables("default") == []
    assert [path for path in tmp_path.rglob("*") if "headrace_check" in path.name] == []


def test_a_table_that_is_there_gets_a_property_and_no_snapshot(table: Table) -> None:
    sink = table.fenced()
    staged = sink.stage(group(1, 1))
    snapshots = table.theirs().metadata.snapshots
    assert table.sink().probe() == "load and commit to default.orders"
    assert "headrace.checked-at" in table.theirs().properties
    assert table.theirs().metadata.snapshots == snapshots
    sink.commit(staged)  # a service that runs meanwhile
    assert table.numbers() == [1]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("create_namespace", "create namespace default"),
        ("create_table", r"create default\.headrace_check_\w+"),
        ("commit_table", r"commit to default\.headrace_check_\w+"),
        ("purge_table", r"drop default\.headrace_check_\w+"),
    ],
)
def test_a_right_that_is_missing_is_named(
    table: Table, monkeypatch: pytest.MonkeyPatch, method: str, said: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ForbiddenError("not for you")

    sink = table.sink()
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, method, refuse)
        with pytest.raises(SinkFailed, match=f"cannot {said}: ForbiddenError: not for you"):
            sink.probe()
    if method != "purge_table":
        assert table.catalog.list_namespaces() == []


def test_a_table_that_may_only_be_read_is_told(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.fenced()
    sink = table.sink()

    def refuse(*_: Any) -> None:
        raise ForbiddenError("not for you")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(SinkFailed, match=r"cannot commit to default.orders: ForbiddenError: not"):
        sink.probe()
