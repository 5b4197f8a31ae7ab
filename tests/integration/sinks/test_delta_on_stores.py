"""Delta tables on object stores: conditional puts instead of links, and nothing to sync."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from sinks import DeltaSink
from sinks.storage import Storage
from tests.acceptance import evidence
from tests.support.azurite import EmbeddedAzurite
from tests.support.seaweed import EmbeddedSeaweed
from tests.worlds.delta_table import LINE, SCHEMA, group, rows, write
from topology.errors import SinkFenced
from topology.sink import SinkContext
from topology.transactional import Committed, Fence

pytestmark = pytest.mark.integration

TARGET_BYTES = 1024 * 1024
STORES = ["s3", pytest.param("azure", marks=pytest.mark.deep)]

MakeStorage: TypeAlias = Callable[[str], Storage]


@pytest.fixture(scope="module", params=STORES)
def on_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeStorage]:
    """`on_store(folder)` is a warehouse there."""
    if request.param == "s3":
        seaweed: EmbeddedSeaweed = request.getfixturevalue("seaweed")
        yield seaweed.storage
        return
    server = EmbeddedAzurite(tmp_path_factory.mktemp("azurite"))
    server.open()
    try:
        yield server.storage
    finally:
        server.close()


def opened(storage: Storage, **options: Any) -> DeltaSink[Any]:
    """Exactly once, so the store is probed."""
    sink: DeltaSink[Any] = DeltaSink("orders", schema=SCHEMA, **options)
    sink.open(SinkContext("p", "s", {}, storage, None, exactly_once=True))
    return sink


def numbers(storage: Storage) -> list[int]:
    files, root = storage.filesystem(storage.uri("orders"))
    return sorted(evidence.read_table(root, files)["number"].to_pylist())


def test_rows_and_txids_are_one_commit_and_a_zombie_is_refused(on_store: MakeStorage) -> None:
    """Promise 9."""
    storage = on_store("fenced")
    sink = opened(storage)
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(group(1, 1, 2)))
    stale = sink.stage(group(2, 3))
    successor = opened(storage)
    assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 1)]
    with pytest.raises(SinkFenced):
        sink.commit(stale)
    sink.discard(stale)
    staged = successor.stage(group(2, 3, epoch=2))
    successor.commit(staged)
    successor.commit(staged)
    assert successor.compact(TARGET_BYTES).files_written == 1
    assert numbers(storage) == [1, 2, 3]
    assert all(file.startswith(storage.uri("orders")) for file in successor.data_files())


def test_rows_are_replaced_by_key(on_store: MakeStorage) -> None:
    storage = on_store("keyed")
    sink = opened(storage, key=["number"])
    write(sink, rows(1, 2))
    write(sink, rows(2, 3), 2)
    assert numbers(storage) == [1, 2, 3]
