"""Delta tables on object stores: conditional puts instead of links, and nothing to sync."""

from typing import Any

import pyarrow.parquet as pq
import pytest

from sinks import DeltaSink
from sinks.storage import Storage
from sinks.tables.delta_log import DeltaLog
from tests.acceptance import evidence
from tests.support.azurite import EmbeddedAzurite
from tests.support.batches import LINE, SCHEMA, STRANGE, group, rows, write
from tests.support.seaweed import EmbeddedSeaweed
from topology.errors import SinkFenced
from topology.sink import Committed, Fence, Removal, SinkContext

pytestmark = pytest.mark.integration

TARGET_BYTES = 1024 * 1024
STORES = ["s3", pytest.param("azure", marks=pytest.mark.deep)]


@pytest.fixture(scope="module", params=STORES)
def on_store(request, tmp_path_factory):
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
    sink: DeltaSink[Any] = DeltaSink("orders", schema=SCHEMA, **options)
    sink.open(SinkContext("p", "s", {}, storage, None, exactly_once=True))
    return sink


def numbers(storage: Storage) -> list[int]:
    files, root = storage.filesystem(storage.uri("orders"))
    return sorted(evidence.read_table(root, files)["number"].to_pylist())


def test_rows_and_txids_are_one_commit_and_a_zombie_is_refused(on_store):
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


def test_rows_are_replaced_by_key(on_store):
    storage = on_store("keyed")
    sink = opened(storage, key=["number"])
    write(sink, rows(1, 2))
    write(sink, rows(2, 3), 2)
    assert numbers(storage) == [1, 2, 3]


def test_vacuum_removes_only_leftovers_of_killed_processes(on_store):
    """The store says how old an object is, so the log is asked with no age at all."""
    storage = on_store("vacuumed")
    sink = opened(storage, partition_by=["place"])
    write(sink, [{"number": 3, "place": each} for each in STRANGE])
    sink.fence([Fence(LINE, 1)])
    sink.stage(group(1, 7))
    assert sink.vacuum(24) == Removal(0, 0)
    log = DeltaLog("orders", storage, storage.uri("orders"))
    for dry_run in (True, False):
        state = log.read()
        assert log.vacuum(state, 0, dry_run=dry_run) == Removal(0, 1)
    files, root = storage.filesystem(storage.uri("orders"))
    for file in sink.data_files():
        path = root + file.removeprefix(storage.uri("orders"))
        assert set(pq.read_table(path, filesystem=files)["number"].to_pylist()) == {3}
    assert len(sink.data_files()) == len(STRANGE)
    assert sink.expire(dry_run=True) == sink.expire() == Removal(0, 0)
    sink.commit(sink.stage(group(1, 1)))
    assert opened(storage).committed([LINE]) == [Committed(LINE, 1, 1)]
