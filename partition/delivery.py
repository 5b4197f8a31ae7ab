"""Delivery modes: what may be emitted of a partition and stored of it, by guarantee."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from partition.errors import PartitionError
from partition.interfaces import Progress
from partition.ledger import CommitProgress, Ledger
from partition.records import Chunk, Partition, Position, Resumed, Transactions

Lengths: TypeAlias = npt.NDArray[np.int64]


class AtLeastOnce:
    """Decide what one partition emits and stores; its PartitionManager does not know the mode.

    The base of the other delivery modes. At least once: emit what there is room for, store the
    last completed offset. Room reaches from the stored offset: with the store away a partition
    runs on to its limit (promise 15). Pure; it reads the partition's ledger and never writes it.
    `room` is how many more records fit into the partition's limits.
    """

    retries = True
    """Whether a record may be tried again, or ahead of its emission."""
    stores_first = False
    """Whether records are emitted only once they are stored as read or planned."""
    buffer_records = 0
    """Records that should wait while none may be emitted; 0: as many as a fetch brings."""

    def __init__(
        self,
        _partition: Partition,
        ledger: Ledger,
        committed: CommitProgress,
        _resumed: Resumed | None = None,
    ) -> None:
        self._ledger = ledger
        self._committed = committed

    @property
    def awaits_commit(self) -> bool:
        """Whether records that need nothing more of the log are not committed in every sink."""
        return False

    def on_fetched(self, chunk: Chunk, lengths: Lengths) -> None:
        """Fetched records wait from now on."""

    def on_log_end(self, end: int) -> None:
        """The log has no record before `end` but those fetched."""

    def on_emitted(self, count: int) -> None:
        """The next `count` records were emitted for the first time."""

    def on_stored(self, progress: Progress) -> None: ...

    def stop(self) -> None:
        """Store nothing more ahead: the run ends, or the partition leaves."""

    def in_flight(self) -> int:
        """Records that count against `max_pending`: what a crash would repeat."""
        return self._committed.read - self._committed.read_below

    def emit_limit(self, room: int, ahead: int) -> int:  # noqa: ARG002 - others store first
        """Return how many of the waiting records may be emitted now.

        `ahead`: how many more may be stored as read, where that comes before the emission.
        """
        return min(room, self._ledger.waiting)

    def accepts_more(self, room: int) -> bool:
        """Whether to fetch more records before others are resolved."""
        return room > 0

    def progress(self, room: int) -> tuple[int, Transactions | None]:  # noqa: ARG002
        """The offset to store now, and the open transactions; None: none are kept."""
        return self._ledger.last_completed_offset, None

    def is_urgent(self, room: int, max_pending: int) -> bool:
        """Whether something is to be stored that should not wait for the commit interval."""
        is_half = 2 * self.in_flight() >= max_pending
        return is_half and self.progress(room)[0] > self._committed.offset

    def owes_emission(self) -> bool:
        """Whether waiting records are stored as read or planned, or about to be."""
        return False  # what was not emitted comes again

    def replay_error(self, *, log_moved: bool) -> PartitionError | None:  # noqa: ARG002
        """Return why the partition must halt, as records of a stored range did not come again.

        `log_moved`: the log is about to go on elsewhere, and what is to come is gone with it.
        """
        return None

    def resume_state(self, position: Position) -> Resumed | None:  # noqa: ARG002 - as above
        """Return the transactions to go on with where the log goes on elsewhere."""
        return None


D = TypeVar("D", bound=AtLeastOnce)
DeliveryFactory: TypeAlias = Callable[[Partition, Ledger, CommitProgress, Resumed | None], D]


class CommitBeforeEmit(AtLeastOnce):
    """At most once: emit what is stored as read; store the offset behind waiting records.

    A crash repeats nothing, and loses what was stored and not processed: at most the limit,
    which reaches from the last completed offset. Nothing is retried.
    """

    retries = False
    stores_first = True

    _ahead = 0
    _is_stopped = False

    def in_flight(self) -> int:
        """Records emitted from the last completed offset on: what a crash would lose."""
        return self._ledger.emitted_count

    def emit_limit(self, room: int, ahead: int) -> int:  # noqa: ARG002 - see AtLeastOnce
        """Records below the stored offset: they had their room when it was stored."""
        self._ahead = ahead
        return self._ledger.waiting_below(self._committed.offset)

    def progress(self, room: int) -> tuple[int, Transactions | None]:
        known = max(self._ledger.last_completed_offset, self._committed.stored_or_submitted)
        if self._is_stopped or room <= 0:
            return known, None
        return max(known, self._ledger.emitted_after(min(self._ahead, room))), None

    def is_urgent(self, room: int, max_pending: int) -> bool:  # noqa: ARG002 - see AtLeastOnce
        if not self._ledger.waiting or self.progress(room)[0] <= self._committed.offset:
            return False
        return 2 * self._ledger.waiting_below(self._committed.stored_or_submitted) <= self._ahead

    def owes_emission(self) -> bool:
        ledger = self._ledger
        return ledger.waiting > 0 and ledger.emitted_to < self._committed.stored_or_submitted

    def stop(self) -> None:
        self._is_stopped = True
