"""Sinks without a store: rows in memory, rows counted, rows handed to a function."""

from collections.abc import Callable, Sequence
from typing import Any

from sinks.columns import fitting_rows, rows_of
from sinks.shares import MemoryLines
from topology.schema import ArrowSchema, Row, schema_of
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
    Staged,
)

# A write costs nothing here, and rows that are still in the caches cost least.
_FEW_ROWS = 8_000
# The code behind a function is likelier to send rows one by one than to write files.
_FUNCTION_ROWS = 1_000


class MemorySink(Sink[Row]):
    """Keeps the rows in `rows`, in the order they were written.

    With a schema it rejects the rows that do not fit, as a table would; the others are
    kept as they came. Rows of a RecordBatch are kept as dictionaries. It keeps transactions
    of both kinds, as long as it lives.
    """

    batch_rows = _FEW_ROWS
    kinds = BOTH_KINDS

    def __init__(
        self, name: str = "memory", *, schema: type[Row] | ArrowSchema | None = None
    ) -> None:
        self.name = name
        self.schema = None if schema is None else schema_of(schema)
        self.rows: list[Any] = []
        self._lines = MemoryLines()

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        return self._lines.fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self._lines.committed(lines)

    def stage(self, batch: Batch) -> Staged:
        rows, rejected = fitting_rows(batch.pieces, self.schema)
        return Staged(batch.shares, len(rows), (rows,), rejected)

    def commit(self, staged: Staged) -> None:
        with self._lines.lock:
            if self._lines.is_to_commit(staged.shares):
                self.rows.extend(*staged.parts)
                self._lines.commit(staged.shares)


class DiscardSink(Sink[object]):
    """Takes rows of any type and only counts them, in `rows`."""

    batch_rows = _FEW_ROWS

    def __init__(self, name: str = "discard") -> None:
        self.name = name
        self.rows = 0

    def commit(self, staged: Staged) -> None:
        self.rows += staged.num_rows


class ForeachSink(Sink[Row]):
    """Calls a function with the rows of each micro-batch: at least once.

    It returns when all rows are durable, and may raise RowsRejected, SinkBusy and SinkFailed, as
    Sink.commit does; after anything else it is called again with the same rows. Rows of a
    RecordBatch are dictionaries.
    """

    batch_rows = _FUNCTION_ROWS

    def __init__(self, write: Callable[[list[Row]], object], *, name: str | None = None) -> None:
        self.name = name or str(getattr(write, "__name__", "foreach"))
        self._write = write

    def commit(self, staged: Staged) -> None:
        self._write(list(rows_of(staged.parts)))


class MemoryDeadLetters(DeadLetterSink):
    """Keeps the dead letters in `letters`, notices in `notices`; each is durable at once."""

    def __init__(self, name: str = "dead letters in memory") -> None:
        self.name = name
        self.letters: list[DeadLetter] = []
        self.notices: list[RangeNotice] = []
        self._answers: list[Delivered] = []

    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        if isinstance(letter, RangeNotice):
            self.notices.append(letter)
        else:
            self.letters.append(letter)
        self._answers.append(Delivered(token, None))

    def poll(self) -> list[Delivered]:
        answers, self._answers = self._answers, []
        return answers

    @property
    def pending(self) -> int:
        return len(self._answers)
