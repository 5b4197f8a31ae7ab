"""What every sink of transactions asks before it commits, or raises an epoch. Pure."""

from collections.abc import Mapping, Sequence

from topology.errors import SinkFailed, SinkFenced
from topology.sink import Committed, Fence, Share

_LOST = "see docs/how-to/when-a-replay-differs.md#sinkstatelost"


def check_fences(fences: Sequence[Fence], found: Sequence[Committed]) -> None:
    """Raise SinkFenced when a line, as it was `found`, has a higher epoch than its fence."""
    for fence, line in zip(fences, found, strict=True):
        _check_epoch(fence.line, fence.epoch, line)


def is_to_commit(
    shares: Sequence[Share], found: Sequence[Committed], fenced: Mapping[str, int] | None = None
) -> bool:
    """Whether the shares are to be committed, as their lines were `found`; False: all are there.

    No shares are always to be: that is a commit of no transactions. `fenced` has the epochs that
    this process has raised. Raises SinkFenced when a line has a
    higher epoch, and SinkFailed when only some are there, or a line has not even the txid before,
    or a lower epoch than was raised: what was committed in the sink is lost again, as when it was
    put back to an older state, and to go on would hide that.
    """
    for share, line in zip(shares, found, strict=True):
        _check_epoch(share.line, share.epoch, line)
    for line in found:
        epoch = (fenced or {}).get(line.line, 0)
        if line.epoch < epoch:
            raise SinkFailed(
                f"{line.line} was fenced under epoch {epoch}, and the sink has "
                f"{line.epoch or 'nothing'} of it: it was put back to an older state; {_LOST}"
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
                f"{line.txid}, but those up to {share.txid - 1} were committed in it; {_LOST}"
            )
    return bool(missing) or not shares


def _check_epoch(name: str, epoch: int, line: Committed) -> None:
    if line.epoch > epoch:
        raise SinkFenced(name, epoch, line.epoch)
