"""What the wiring makes of the configuration."""

from pathlib import Path

import pyarrow as pa
import pytest

from headrace import Topology
from headrace.sinks import MemoryDeadLetters, ParquetSink
from service.config import load
from service.parts import warehouse_of, wire
from tests.support.front import Front

NEEDED = {"kafka": {"bootstrap.servers": "b:9092"}, "zookeeper": {"hosts": "z:2181"}}


@pytest.mark.parametrize("place", ["file:/data/lake", "file:///data/lake", "s3a://bucket/lake"])
def test_a_warehouse_that_is_a_uri_stays_as_it_is(place: str) -> None:
    assert warehouse_of(load(None, NEEDED | {"spark": {"warehouse": place}})) == place


@pytest.mark.parametrize("place", ["lake", "./lake", "../here/lake"])
def test_a_warehouse_that_is_a_path_is_made_absolute(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path.resolve() / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    config = load(None, NEEDED | {"spark": {"warehouse": place}})
    assert warehouse_of(config) == str(here / "lake")


def test_spark_is_started_for_a_sink_behind_others(tmp_path: Path) -> None:
    config = load(None, NEEDED | {"spark": {"warehouse": str(tmp_path)}})
    topology = Topology("numbers")
    table = ParquetSink("numbers", schema=pa.schema([("n", pa.int64())]))
    topology.source("t").into(Front(Front(table)))
    topology.dead_letters.into(MemoryDeadLetters())
    assert wire(topology, config).spark is not None
