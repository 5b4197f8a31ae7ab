"""Delta tables on an object store: conditional puts instead of links, and nothing to sync."""

from typing import Any

import pyarrow as pa
import pytest

from sinks import DeltaSink
from sinks.tables.delta import DeltaLog
from tests.support.seaweed import EmbeddedSeaweed
from tests.worlds.delta_table import LINE, SCHEMA, group, rows, write
from topology.errors import SinkFenced
from topology.sink import SinkContext
from topology.transactional import Committed, Fence

pytestmark = pytest.mark.integration

TARGET_BYTES = 1024 * 1024


def opened(seaweed: EmbeddedSeaweed, folder: str, **options: Any) -> DeltaSink[Any]:
    sink: DeltaSink[Any] = DeltaSink("orders", schema=SCHEMA, **options)
    sink.open(SinkContext("p", "s", {}, seaweed.storage(folder), None, exactly_once=True))
    return sink


def numbers(seaweed: EmbeddedSeaweed, folder: str) -> list[int]:
    storage = seaweed.storage(folder)
    log = DeltaLog("orders", storage, storage.uri("orders"))
    state = log.read()
    found = SCHEMA.empty_table() if state is None else log.rows(state)
    return sorted(pa.chunked_array(found["number"]).to_pylist())


def test_rows_and_txids_are_one_commit_and_a_zombie_is_refused(seaweed: EmbeddedSeaweed) -> None:
    """Promise 9."""
    sink = opened(seaweed, "fenced")
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(group(1, 1, 2)))
    stale = sink.stage(group(2, 3))
    successor = opened(seaweed, "fenced")
    assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 1)]
    with pytest.raises(SinkFenced):
        sink.commit(stale)
    sink.discard(stale)
    staged = successor.stage(group(2, 3, epoch=2))
    successor.commit(staged)
    successor.commit(staged)
    assert successor.compact(TARGET_BYTES).files_written == 1
    assert numbers(seaweed, "fenced") == [1, 2, 3]
    assert all(file.startswith("s3://lake/fenced/orders/") for file in successor.data_files())


def test_rows_are_replaced_by_key(seaweed: EmbeddedSeaweed) -> None:
    sink = opened(seaweed, "keyed", key=["number"])
    write(sink, rows(1, 2))
    write(sink, rows(2, 3), 2)
    assert numbers(seaweed, "keyed") == [1, 2, 3]
