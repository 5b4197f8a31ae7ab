"""What the wiring makes of the configuration."""

from pathlib import Path

import pytest

from service.config import load
from service.parts import warehouse_of

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
