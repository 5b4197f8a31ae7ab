"""Tests of manifest tables do not wait for the disk, unless they say so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sinks.manifest import durable
from tests.worlds.manifest_table import Table


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was written through to the disk, in this order; here it is only noted."""
    noted: list[Path] = []
    monkeypatch.setattr(durable, "_sync", lambda path, flags: noted.append(path))
    return noted


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path)
    yield made
    for sink in made.sinks:
        sink.close()
