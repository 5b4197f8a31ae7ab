"""A sink that hands rows to a function of the user's own."""

from collections.abc import Callable

from sinks.rows import rows_of
from topology.sink import Row, Sink, SinkContext, Staged

# The code behind it is likelier to send rows one by one than to write files.
_BATCH_ROWS = 1_000


class ForeachSink(Sink[Row]):
    """Calls a function with the rows of each micro-batch: at least once.

    It returns when all rows are durable, and may raise RowsRejected, SinkBusy and SinkFailed, as
    Sink.commit does; after anything else it is called again with the same rows. Rows of a
    RecordBatch are dictionaries.
    """

    batch_rows = _BATCH_ROWS

    def __init__(self, write: Callable[[list[Row]], object], *, name: str | None = None) -> None:
        self.name = name or str(getattr(write, "__name__", "foreach"))
        self._write = write

    def open(self, context: SinkContext) -> None:
        """Do nothing: what the function needs is its own affair."""

    def commit(self, staged: Staged) -> None:
        """Call the function."""
        self._write(list(rows_of(staged.parts)))

    def close(self) -> None:
        """Do nothing."""
