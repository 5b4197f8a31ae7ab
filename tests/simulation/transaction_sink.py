"""The tables of a world that runs exactly once: rows and txids land together, or nothing does."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.tuples import Attempt
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Share, Staged

if TYPE_CHECKING:
    from tests.simulation.transaction_oracle import TransactionOracle


class Row:
    """A row of one table, and the try at a record that made it."""

    def __init__(self, attempt: Attempt, table: str, *, fits: bool) -> None:
        self.attempt = attempt
        self.table = table
        self.fits = fits


class SimTable:
    """A sink that keeps transactions, as its server: what is asked twice is done once.

    A request may arrive late, or twice, or from a process that is dead: what refuses it is the
    epoch of its line, as in a real sink.
    """

    def __init__(self, name: str, oracle: "TransactionOracle", seen: Callable[[str], None]) -> None:
        self.name = name
        self.busy = False
        self.lines: dict[str, tuple[int, int]] = {}  # epoch and txid
        self.rows = 0
        self._oracle = oracle
        self.seen = seen

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """See `Sink.fence`."""
        self.is_there()
        for line, epoch in fences:
            found, _txid = self.lines.get(line, (0, 0))
            if found > epoch:
                raise SinkFenced(line, epoch, found)
        for line, epoch in fences:
            self.raise_epoch(line, epoch)
        return self.committed([line for line, _epoch in fences])

    def raise_epoch(self, line: str, epoch: int) -> None:
        """Let nobody with a lower epoch commit any more."""
        self.lines[line] = (epoch, self.lines.get(line, (0, 0))[1])
        self._oracle.fenced(self, line, epoch)

    def set_line(self, line: str, epoch: int, txid: int) -> None:
        """Go on behind a txid, as an operator says."""
        self.raise_epoch(line, epoch)
        self.lines[line] = (epoch, txid)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """See `Sink.committed`."""
        return [Committed(line, *self.lines.get(line, (0, 0))) for line in lines]

    def stage(self, group: Batch) -> Staged:
        """Keep each share's rows by themselves, less those that do not fit."""
        pieces: list[Any] = group.pieces
        rows = [row for piece in pieces for row in piece]
        rejected = {place: "it does not fit" for place, row in enumerate(rows) if not row.fits}
        parts, place = [], 0
        for share in group.shares:
            mine = range(place, place + share.num_rows)
            parts.append([rows[index] for index in mine if index not in rejected])
            place += share.num_rows
        return Staged(group.shares, group.num_rows, tuple(parts), rejected)

    def commit(self, sender: Any, staged: Staged) -> None:
        """See `Sink.commit`."""
        self.is_there()
        for share in staged.shares:
            epoch, _txid = self.lines.get(share.line, (0, 0))
            if epoch > share.epoch:
                self.seen("zombie_commit_refused" if not sender.alive else "commit_fenced")
                raise SinkFenced(share.line, share.epoch, epoch)
        if self.has_all(staged.shares):
            self._oracle.said_done(self, sender, staged)
            return
        if any(map(self.has, staged.shares)):
            self._oracle.has_some(self, sender, staged)
            raise SinkFailed("only some of the shares are committed")
        for share, rows in zip(staged.shares, staged.parts, strict=True):
            self.lines[share.line] = (share.epoch, share.txid)
            self.rows += len(rows)
        self._oracle.landed(self, sender, staged)

    def has(self, share: Share) -> bool:
        """Whether a share is committed."""
        return self.lines.get(share.line, (0, 0))[1] >= share.txid

    def has_all(self, shares: Sequence[Share]) -> bool:
        """Whether they are all committed."""
        return all(map(self.has, shares))

    def is_there(self) -> None:
        """Raise SinkBusy unless it answers."""
        if self.busy:
            raise SinkBusy(0.1)
