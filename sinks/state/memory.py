"""State in memory: for tests and trials."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sinks.shares import check_fences, is_to_commit
from sinks.state.store import Change, StateStore
from sinks.state.values import places_of
from topology.errors import SinkFailed
from topology.sink import Committed, Fence, Share, SinkContext
from topology.state import Shape


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)  # others' threads come too
    lines: dict[tuple[str, str, str], Committed] = field(default_factory=dict)
    rows: pa.Table | None = None


class MemoryState(StateStore):
    """Keeps state as long as it lives.

    One made `beside` another has the same rows: it is what another process would have.
    """

    def __init__(self, *, beside: "MemoryState | None" = None) -> None:
        self._kept: _Kept = _Kept() if beside is None else beside._kept  # noqa: SLF001 - one of us
        self._owner = ("", "")
        self._shape: Shape | None = None

    def open(self, context: SinkContext, shape: Shape) -> None:
        """Remember whose lines they are; memory is always there. Raises SinkFailed."""
        self._owner = (context.pipeline, context.sink)
        self._shape = shape
        with self._kept.lock:
            self._rows(shape)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs; see the contract."""
        with self._kept.lock:
            found = self._found([fence.line for fence in fences])
            check_fences(fences, found)
            raised = [
                line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
            ]
            self._set(raised)
            return raised

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Say what is committed."""
        with self._kept.lock:
            return self._found(lines)

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        """Change rows and set txids; see the contract."""
        if self._shape is None:
            raise SinkFailed("the state is not open")
        with self._kept.lock:
            found = self._found([share.line for share in shares])
            if shares and not is_to_commit(shares, found):
                return
            rows = self._rows(self._shape)
            wanted = pc.is_valid(places_of(rows, keys, keys.column_names))
            changed = change(rows.filter(wanted))
            self._kept.rows = pa.concat_tables([rows.filter(pc.invert(wanted)), changed])
            self._set([Committed(share.line, share.epoch, share.txid) for share in shares])

    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        """All rows; see the contract."""
        del context
        with self._kept.lock:
            return self._rows(shape)

    def close(self) -> None:
        """Do nothing: the rows stay readable."""

    def _rows(self, shape: Shape) -> pa.Table:
        rows = self._kept.rows
        if rows is None:
            rows = self._kept.rows = shape.schema.empty_table()
        if not rows.schema.equals(shape.schema):
            raise SinkFailed(
                f"state '{shape.state}' has the columns {shape.schema.names}; there are "
                f"{rows.schema.names}, of other types perhaps"
            )
        return rows

    def _found(self, lines: Sequence[str]) -> list[Committed]:
        return [self._kept.lines.get((*self._owner, line), Committed(line, 0, 0)) for line in lines]

    def _set(self, lines: Sequence[Committed]) -> None:
        self._kept.lines |= {(*self._owner, line.line): line for line in lines}
