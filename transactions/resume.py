"""Open transactions after a restart or a takeover. Pure."""

from collections.abc import Mapping
from itertools import takewhile

from partition.errors import KindChanged, SinkAhead, SinkStateLost
from partition.interfaces import StoredOffset
from partition.records import OpenTransaction, Position, Resumed, TransactionKind, Transactions


def resumed(
    partition: object,
    stored: StoredOffset,
    committed: Mapping[str, int],
    kind: TransactionKind,
) -> Resumed:
    """Say where a partition goes on, by what is stored and by the txid each sink has committed.

    Every sink must have been fenced before `committed` was read, or a late commit of the owner
    before may still land. What every sink has is done. What one sink has and another not is
    replayed exactly, in both kinds, or the sinks would part; so is what none has if `kind` is
    transactional. If it is opaque, that is planned anew, under the same txids. Transactions of
    another kind may stand in the store as long as nothing is open. A range that is only planned
    is committed by nobody: a sink that has it is ahead of the store.

    Raises SinkAhead, SinkStateLost, KindChanged: the partition must halt.
    """
    found = stored.transactions or Transactions(kind)
    first = found.committed
    last = first + sum(1 for _ in takewhile(lambda each: each.range.is_sealed, found.open))
    for sink, txid in committed.items():
        if txid > last:
            raise SinkAhead(partition, sink, txid, last)
        if txid < first:
            raise SinkStateLost(partition, sink, txid, first)
    every = min(committed.values(), default=first)
    some = max(committed.values(), default=first)
    position = stored.position
    for each in found.open[: every - first]:
        position = _after(each, position)
    still_open = found.open[every - first :]
    if still_open and found.kind != kind:
        raise KindChanged(partition, found.kind, kind)
    anew = tuple(each for each in still_open if kind == "opaque" and each.txid > some)
    exactly = still_open[: len(still_open) - len(anew)]
    return Resumed(
        position,
        Transactions(kind, every, exactly),
        skips={sink: txid for sink, txid in committed.items() if txid > every},
        attempts={each.txid: each.attempt for each in anew},
        least_attempt=max(stored.epoch, 1) if kind == "opaque" else 1,
    )


def _after(done: OpenTransaction, before: Position) -> Position:
    """The position after a transaction's last record."""
    epoch = done.range.leader_epoch
    if epoch is None:
        epoch = before.leader_epoch
    return Position(done.range.end, epoch, before.topic_id)
