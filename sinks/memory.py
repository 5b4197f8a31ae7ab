"""Sinks that keep or count what they get: for tests, trials and benchmarks."""

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sinks.rows import fitting_rows
from sinks.shares import check_fences, is_to_commit
from topology.schema import Row, schema_of
from topology.sink import (
    BOTH_KINDS,
    Batch,
    Committed,
    DeadLetter,
    DeadLetterSink,
    Delivered,
    Fence,
    RangeNotice,
    Sink,
    SinkContext,
    Staged,
)

# A write costs nothing here, and rows that are still in the caches cost least.
_FEW_ROWS = 8_000


class MemorySink(Sink[Row]):
    """Keeps the rows in `rows`, in the order they were written.

    With a schema it rejects the rows that do not fit, as a table would; the others are
    kept as they came. Rows of a RecordBatch are kept as dictionaries. It keeps transactions
    of both kinds, as long as it lives.
    """

    batch_rows = _FEW_ROWS
    kinds = BOTH_KINDS

    def __init__(
        self, name: str = "memory", *, schema: type[Row] | pa.Schema | None = None
    ) -> None:
        self.name = name
        self.schema = None if schema is None else schema_of(schema)
        self.rows: list[Any] = []
        self._lines: dict[str, Committed] = {}
        self._lock = threading.Lock()  # a zombie's thread may commit beside its successor's

    def open(self, context: SinkContext) -> None:
        """Do nothing: memory is always there."""

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs; see the contract."""
        with self._lock:
            found = self._found([fence.line for fence in fences])
            check_fences(fences, found)
            raised = [
                line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
            ]
            self._lines |= {line.line: line for line in raised}
            return raised

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Say what is committed."""
        with self._lock:
            return self._found(lines)

    def stage(self, batch: Batch) -> Staged:
        """Set apart the rows that do not fit."""
        rows, rejected = fitting_rows(batch.pieces, self.schema)
        return Staged(batch.shares, len(rows), (rows,), rejected)

    def commit(self, staged: Staged) -> None:
        """Keep the rows and the txids; see the contract."""
        with self._lock:
            found = self._found([share.line for share in staged.shares])
            if is_to_commit(staged.shares, found):
                self.rows.extend(*staged.parts)
                self._lines |= {
                    share.line: Committed(share.line, share.epoch, share.txid)
                    for share in staged.shares
                }

    def _found(self, lines: Sequence[str]) -> list[Committed]:
        return [self._lines.get(line, Committed(line, 0, 0)) for line in lines]

    def close(self) -> None:
        """Do nothing: the rows stay readable."""


class DiscardSink(Sink[object]):
    """Takes rows of any type and only counts them, in `rows`."""

    batch_rows = _FEW_ROWS

    def __init__(self, name: str = "discard") -> None:
        self.name = name
        self.rows = 0

    def open(self, context: SinkContext) -> None:
        """Do nothing."""

    def commit(self, staged: Staged) -> None:
        """Count the rows."""
        self.rows += staged.num_rows

    def close(self) -> None:
        """Do nothing."""


class MemoryDeadLetters(DeadLetterSink):
    """Keeps the dead letters in `letters`, notices in `notices`; each is durable at once."""

    def __init__(self, name: str = "dead letters in memory") -> None:
        self.name = name
        self.letters: list[DeadLetter] = []
        self.notices: list[RangeNotice] = []
        self._untold: list[Delivered] = []

    def open(self, context: SinkContext) -> None:
        """Do nothing: memory is always there."""

    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        """Keep the letter or notice."""
        if isinstance(letter, RangeNotice):
            self.notices.append(letter)
        else:
            self.letters.append(letter)
        self._untold.append(Delivered(token, None))

    def poll(self) -> list[Delivered]:
        """Tell of every letter sent since the last call."""
        told, self._untold = self._untold, []
        return told

    @property
    def pending(self) -> int:
        """Letters of which `poll` has not told yet."""
        return len(self._untold)

    def flush(self, timeout_seconds: float) -> None:
        """Do nothing: no letter is on its way."""

    def close(self) -> None:
        """Do nothing: the letters stay readable."""
