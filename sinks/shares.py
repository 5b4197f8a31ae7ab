"""Epochs and txids in a sink: which fence may rise, which batch is to be committed."""

import threading
from collections.abc import Hashable, Mapping, Sequence

from topology.errors import SinkFailed, SinkFenced
from topology.sink import Committed, Fence, Share

LOST = "see docs/how-to/when-a-replay-differs.md#sinkstatelost"


def check_fences(fences: Sequence[Fence | Share], found: Sequence[Committed]) -> list[Committed]:
    """Return lines, as they were `found`, with the epochs of their fences.

    Raises SinkFenced when a line has a higher epoch than its fence.
    """
    for fence, line in zip(fences, found, strict=True):
        if line.epoch > fence.epoch:
            raise SinkFenced(fence.line, fence.epoch, line.epoch)
    return [line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)]


def is_to_commit(
    shares: Sequence[Share], found: Sequence[Committed], fenced: Mapping[str, int] | None = None
) -> bool:
    """Whether the shares are to be committed, as their lines were `found`; False: all are there.

    No shares always are: that is a commit of no transactions. `fenced` has the epochs that this
    process has raised. Raises SinkFenced when a line has a higher epoch, and SinkFailed when only
    some shares are there, or a line lacks the txid before, or has a lower epoch than was raised:
    then the sink has lost commits, as when it was restored from a backup.
    """
    check_fences(shares, found)
    for line in found:
        epoch = (fenced or {}).get(line.line, 0)
        if line.epoch < epoch:
            raise SinkFailed(
                f"{line.line} was fenced under epoch {epoch}, and the sink has "
                f"{line.epoch or 'nothing'} of it: it was put back to an older state; {LOST}"
            )
    missing = [share for share, line in zip(shares, found, strict=True) if line.txid < share.txid]
    if missing and len(missing) < len(shares):
        share = missing[0]
        message = f"{share.line} {share.txid} is not committed, but others of its group are"
        raise SinkFailed(message)
    for share, line in zip(shares, found, strict=True):
        if line.txid < share.txid - 1:
            raise SinkFailed(
                f"{share.line} {share.txid} cannot be committed: the sink has transactions up to "
                f"{line.txid}, but those up to {share.txid - 1} were committed in it; {LOST}"
            )
    return bool(missing) or not shares


class MemoryLines:
    """The lines of sinks that live in memory. `owner` tells the lines of one sink from others'."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a zombie's thread may commit beside its successor's
        self._lines: dict[tuple[Hashable, str], Committed] = {}

    def fence(self, fences: Sequence[Fence], owner: Hashable = None) -> list[Committed]:
        with self.lock:
            raised = check_fences(fences, self.committed([each.line for each in fences], owner))
            self._lines |= {(owner, line.line): line for line in raised}
            return raised

    def committed(self, lines: Sequence[str], owner: Hashable = None) -> list[Committed]:
        with self.lock:
            return [self._lines.get((owner, line), Committed(line, 0, 0)) for line in lines]

    def is_to_commit(self, shares: Sequence[Share], owner: Hashable = None) -> bool:
        return is_to_commit(shares, self.committed([share.line for share in shares], owner))

    def commit(self, shares: Sequence[Share], owner: Hashable = None) -> None:
        """Set epoch and txid of each share's line; hold `lock` since `is_to_commit`."""
        for each in shares:
            self._lines[owner, each.line] = Committed(each.line, each.epoch, each.txid)
