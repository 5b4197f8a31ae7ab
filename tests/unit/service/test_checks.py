"""`headrace check`: what it says of sinks and of their catalogues."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.sinks import DiscardSink, IcebergSink
from service.cli.check import _sinks
from sinks.storage import Storage
from tests.support.commands import topology_of
from topology.errors import SinkFailed
from topology.sink import SinkContext
from topology.steps import SinkStep


def orders() -> IcebergSink[Any]:
    return IcebergSink("orders", schema=pa.schema({"number": pa.int64()}))


def checks(warehouse: Path, *sinks: Any) -> list[str]:
    """The lines about the sinks."""
    topology = topology_of(sinks)
    steps = [step for step in topology.steps() if isinstance(step, SinkStep)]
    context = SinkContext("p", "s", {}, Storage(str(warehouse)), None)
    parts: Any = SimpleNamespace(spark=None, sinks=steps, context=lambda _: context)
    found = _sinks(parts)
    for step in steps:
        step.sink.close()
    return [f"{each.ok} {each.name}: {each.detail}" for each in found]


def test_each_table_of_a_catalogue_has_a_line(tmp_path: Path) -> None:
    assert checks(tmp_path, orders(), DiscardSink("rest")) == [
        "True sink: orders",
        "True catalogue: default: create, load, commit to and drop a table in default",
        "True sink: rest",
    ]


def test_missing_right_fails_the_catalogue_not_the_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> str:
        raise SinkFailed("cannot create default.headrace_check: ForbiddenError: not for you")

    monkeypatch.setattr(IcebergSink, "probe", refuse)
    ok, failed = checks(tmp_path, orders())
    assert ok == "True sink: orders"
    assert failed.startswith("False catalogue: default: cannot create default.headrace_check: F")
