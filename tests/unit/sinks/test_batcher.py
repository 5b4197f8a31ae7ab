from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sinks.batcher import Batcher, BatchPolicy, estimated_bytes
from topology.sink import Piece

LARGE = BatchPolicy(batch_rows=1_000_000, batch_bytes=1 << 40, batch_seconds=1000.0)


def add(batcher: Batcher, piece: Piece, now: float = 0.0, first: int = 0) -> None:
    length = piece.num_rows if isinstance(piece, pa.RecordBatch) else len(piece)
    trees = np.arange(first, first + length, dtype=np.int64)
    batcher.add(piece, trees, trees.astype(np.uint64) + np.uint64(1000), now)


def test_an_empty_batcher_is_never_due() -> None:
    batcher = Batcher(BatchPolicy(batch_rows=1, batch_bytes=1, batch_seconds=0.0))
    add(batcher, [])
    assert not batcher.due(1e9)
    assert batcher.deadline is None
    with pytest.raises(ValueError, match="no row"):
        batcher.take()


def test_a_batch_is_due_at_its_rows() -> None:
    batcher = Batcher(BatchPolicy(batch_rows=3, batch_bytes=1 << 40, batch_seconds=1000.0))
    add(batcher, [{}, {}])
    assert not batcher.due(0.0)
    add(batcher, [{}])
    assert batcher.due(0.0)


def test_a_batch_is_due_at_its_bytes() -> None:
    batcher = Batcher(BatchPolicy(batch_rows=1000, batch_bytes=800, batch_seconds=1000.0))
    add(batcher, pa.record_batch({"a": np.arange(99)}))
    assert not batcher.due(0.0)
    add(batcher, pa.record_batch({"a": np.arange(1)}))
    assert batcher.due(0.0)


def test_a_batch_is_due_when_its_oldest_row_has_waited_enough() -> None:
    batcher = Batcher(BatchPolicy(batch_rows=1000, batch_bytes=1 << 40, batch_seconds=5.0))
    add(batcher, [{}], now=100.0)
    add(batcher, [{}], now=104.0)
    assert batcher.deadline == 105.0
    assert not batcher.due(104.9)
    assert batcher.due(105.0)


def test_taking_hands_over_everything_aligned_and_starts_afresh() -> None:
    batcher = Batcher(LARGE)
    columns = pa.record_batch({"a": [1, 2]})
    add(batcher, [{"a": 0}])
    add(batcher, columns, first=1)
    pending = batcher.take()
    assert (pending.batch.sequence, pending.batch.num_rows) == (1, 3)
    assert pending.batch.pieces == [[{"a": 0}], columns]
    assert pending.trees.tolist() == [0, 1, 2]
    assert pending.trees.dtype == np.int64
    assert pending.edges.tolist() == [1000, 1001, 1002]
    assert pending.edges.dtype == np.uint64
    assert (batcher.num_rows, batcher.num_bytes, batcher.deadline) == (0, 0, None)
    add(batcher, [{}], now=7.0)
    assert batcher.take().batch.sequence == 2


def test_arrays_that_do_not_match_their_piece_are_refused() -> None:
    batcher = Batcher(LARGE)
    with pytest.raises(ValueError, match="2 rows came with 1 trees and 2 edges"):
        batcher.add([{}, {}], np.zeros(1, np.int64), np.zeros(2, np.uint64), 0.0)
    assert batcher.num_rows == 0


@pytest.mark.parametrize("length", [1, 7, 8, 9, 1000])
def test_the_estimate_of_equal_rows_is_their_values_size(length: int) -> None:
    row: dict[str, Any] = {"a": 1, "b": "x" * 100, "c": [1.0, 2.0], "d": None, "e": b"12"}
    assert estimated_bytes([row] * length) == length * (8 + 100 + 16 + 8 + 2)
