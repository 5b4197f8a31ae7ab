"""Rows on their way to a sink: when a batch is due, and handed to its writer."""

from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.sinks import MemorySink
from service.pipeline.sink_buffer import (
    BatchBuffer,
    GroupBuffer,
    GroupWork,
    Rows,
    TransactionBuffer,
    estimated_bytes,
)
from topology.sink import Batch, Piece, Staged
from topology.steps import BatchPolicy, SinkStep

NO_TREES: Any = None
NONE = np.empty(0, np.int64)  # record ids are of no use here

LARGE = BatchPolicy(batch_rows=1_000_000, batch_bytes=1 << 40, batch_seconds=1000.0)


class NoWriter:
    """Notes what it is given."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.commits: list[Staged] = []
        self.fenced: Future[int] = Future()

    def start(self) -> None:
        pass

    def fence(self) -> Future[int]:
        return self.fenced

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)

    def commit(self, staged: Staged) -> None:
        self.commits.append(staged)


def buffer_of(policy: BatchPolicy = LARGE) -> tuple[BatchBuffer, NoWriter]:
    writer: Any = NoWriter()
    return BatchBuffer(SinkStep("rows", MemorySink(), policy), writer, NO_TREES), writer


def add(buffer: BatchBuffer, piece: Piece, now: float = 0.0, first: int = 0) -> None:
    length = piece.num_rows if isinstance(piece, pa.RecordBatch) else len(piece)
    trees = np.arange(first, first + length, dtype=np.int64)
    buffer.add(Rows(piece, NONE, trees, trees.astype(np.uint64) + np.uint64(1000)), now)


@pytest.mark.parametrize(
    ("policy", "rows"),
    [
        (BatchPolicy(3, 1 << 40, 1000.0), lambda count: [{}] * (3 * count // 100)),
        (BatchPolicy(1000, 800, 1000.0), lambda count: pa.record_batch({"a": np.arange(count)})),
    ],
    ids=["rows", "bytes"],
)
def test_batch_is_due_at_its_limit(policy: BatchPolicy, rows: Any) -> None:
    buffer, _writer = buffer_of(policy)
    add(buffer, [])
    assert not buffer.is_due(1e9), "an empty batch is never due"
    add(buffer, rows(99))
    assert not buffer.is_due(0.0)
    add(buffer, rows(34))
    assert buffer.is_due(0.0)


def test_batch_is_handed_over_with_its_trees() -> None:
    buffer, writer = buffer_of()
    columns = pa.record_batch({"a": [1, 2]})
    add(buffer, [{"a": 0}])
    add(buffer, columns, first=1)
    assert not buffer.submit_due(0.0, flush=True), "the sink is not ready yet"
    writer.fenced.set_result(0)
    assert buffer.submit_due(0.0, flush=True)
    (batch,), (pending,) = writer.batches, buffer._writing
    assert (batch.sequence, batch.num_rows) == (1, 3)
    assert batch.pieces == [[{"a": 0}], columns]
    assert pending.trees.tolist() == [0, 1, 2]
    assert pending.trees.dtype == np.int64
    assert pending.edges.tolist() == [1000, 1001, 1002]
    assert pending.edges.dtype == np.uint64
    assert buffer.rows_pending == 3
    add(buffer, [{}], now=7.0)
    assert not buffer.is_due(1006.9)
    assert buffer.is_due(1007.0)
    assert buffer.submit_due(7.0, flush=True)
    assert writer.batches[1].sequence == 2
    add(buffer, [{}], now=7.0)
    assert not buffer.submit_due(7.0, flush=True), "one is committed, one is staged"


def test_arrays_that_do_not_match_the_piece_are_rejected() -> None:
    buffer, _writer = buffer_of()
    with pytest.raises(ValueError, match="2 rows came with 1 trees and 2 edges"):
        buffer.add(Rows([{}, {}], NONE, np.zeros(1, np.int64), np.zeros(2, np.uint64)), 0.0)
    assert buffer.rows_pending == 0


@pytest.mark.parametrize("length", [1, 7, 8, 9, 1000])
def test_estimated_bytes_of_equal_rows_are_exact(length: int) -> None:
    row: dict[str, Any] = {"a": 1, "b": "x" * 100, "c": [1.0, 2.0], "d": None, "e": b"12"}
    assert estimated_bytes([row] * length) == length * (8 + 100 + 16 + 8 + 2)


def test_group_is_not_committed_before_the_one_before_has_ended() -> None:
    """Promise 14: what follows a commit that fails must not be committed before it."""
    writer: Any = NoWriter()
    buffer: GroupBuffer[Any] = TransactionBuffer(SinkStep("rows", MemorySink(), LARGE), writer)
    first, second = (GroupWork(staged=Staged((), 1)) for _ in range(2))
    buffer.commit(first)
    with pytest.raises(RuntimeError, match="commits group"):
        buffer.commit(second)
    assert writer.commits == [first.staged]
