"""What is stored of a partition's open transactions, beside its offset.

A transaction is a range of offsets under a number, the txid. It stands in the partition's
own node before its first record is emitted, so that a crash replays the same records under
the same txid (Storm's transactional topology kept the same beside its spout's state). Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from partition.records import Position

TransactionKind: TypeAlias = Literal["transactional", "opaque"]

_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, from `first` to `end`, the next one after them.

    It is planned, or sealed. A planned one (the spark engine's, before it was read) has neither
    a count nor a digest, and no sink can have committed it; a sealed one says what it held.
    """

    first: int
    end: int
    count: int | None = None  # records; gaps are none
    digest: str | None = None  # 32 hex digits, of the records' offsets and lengths
    leader_epoch: int | None = None  # no record of it has a later one; None: not known

    @property
    def is_sealed(self) -> bool:
        """Whether it is known which records it holds."""
        return self.count is not None

    def __str__(self) -> str:
        """Its offsets, and how many records they held if that is known."""
        held = "" if self.count is None else f" ({self.count} records)"
        return f"offsets {self.first} to {self.end}{held}"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is recorded, and is not known to be committed in every sink."""

    txid: int
    attempt: int  # from 1; grows with each try, over restarts too
    range: Range


@dataclass(frozen=True, slots=True)
class Transactions:
    """A partition's open transactions in the order of their txids, without a hole.

    Each begins where the one before it ends. All up to the txid `committed` are in every sink.
    """

    kind: TransactionKind
    committed: int = 0
    open: tuple[OpenTransaction, ...] = ()

    def checked(self, offset: int) -> "Transactions":
        """Itself. Raises ValueError, with what is wrong, unless it goes on from `offset`."""
        if self.committed < 0:
            raise ValueError(f"txid {self.committed}; 0 or more is allowed")
        place, txid = offset, self.committed
        for each in self.open:
            covers, txid = each.range, txid + 1
            if each.txid != txid:
                raise ValueError(f"txid {each.txid} where {txid} was to come")
            if covers.first != place or covers.end <= covers.first:
                found = f"txid {txid} covers {covers.first} to {covers.end}"
                raise ValueError(f"{found}; it was to begin at {place} and not be empty")
            if each.attempt < 1:
                raise ValueError(f"txid {txid} has attempt {each.attempt}; 1 or more is allowed")
            _check_seal(txid, covers)
            place = covers.end
        return self

    @property
    def is_promised(self) -> bool:
        """Whether open ranges must come again as they are: the lowest of them is sealed.

        One that is only planned was committed by nobody, and so none of those after it.
        """
        return bool(self.open) and self.open[0].range.is_sealed

    @property
    def first(self) -> int | None:
        """Where the lowest open one begins; None if none is open."""
        return self.open[0].range.first if self.open else None


def _check_seal(txid: int, covers: Range) -> None:
    """Raise ValueError unless a range says all of what it held, or nothing."""
    if covers.leader_epoch is not None and covers.leader_epoch < 0:
        raise ValueError(f"txid {txid} has leader epoch {covers.leader_epoch}")
    if covers.count is None or covers.digest is None:
        if (covers.count, covers.digest) != (None, None):
            raise ValueError(f"txid {txid} has only one of its count and digest")
        return
    if not 0 <= covers.count <= covers.end - covers.first:
        found = f"{covers.count} records in {covers.end - covers.first} offsets"
        raise ValueError(f"txid {txid} has {found}")
    if _DIGEST.fullmatch(covers.digest) is None:
        raise ValueError(f"txid {txid} has digest {covers.digest[:40]!r}, not 32 hex digits")


@dataclass(frozen=True, slots=True)
class Resumed:
    """How a partition's transactions go on after a restart or a takeover."""

    position: Position  # where reading begins
    transactions: Transactions  # what is open from there on, to be replayed as it stands
    skips: Mapping[str, int] = field(default_factory=dict)
    """By sink: up to which open txid it has our rows already."""
    attempts: Mapping[int, int] = field(default_factory=dict)
    """By txid: the last attempt of those that are planned anew (opaque)."""
    least_attempt: int = 1
    """In which attempt a transaction begins at least.

    The owner's epoch if opaque: what an owner before had begun may stand nowhere any more.
    """

    def anew(self) -> "Resumed":
        """The same, but what is open is planned anew, under its txids, in later attempts."""
        known = self.transactions
        attempts = {**self.attempts, **{each.txid: each.attempt for each in known.open}}
        return replace(self, transactions=replace(known, open=()), attempts=attempts)
