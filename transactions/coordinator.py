"""One line's transactions: numbered without holes, processed several at once, committed in order.

Storm's TransactionalSpoutCoordinator and Trident's MasterBatchCoordinator are the models: a
transaction is PROCESSING, PROCESSED, COMMITTING; up to `max_active` are open; only the lowest is
committed; one that fails fails all later ones, in new attempts. Unlike Storm's, an attempt is
counted up in what is recorded, so that it grows over restarts too, and it is compared before
anything is changed, so that a late word about an old attempt has no effect.

Pure: no thread, no clock, no I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from transactions.errors import BrokenLine, OutcomePending, OutOfOrder, TooManyActive

R = TypeVar("R")
"""What a transaction covers: a range of one partition, or ranges of all."""


class Phase(Enum):
    """How far an open transaction is."""

    PLANNED = "planned"  # this attempt is not recorded: nothing of it may be emitted
    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"


class Attempt(NamedTuple):
    """One try at a transaction."""

    txid: int  # from 1
    number: int  # from 1; grows with each try, over restarts too


@dataclass(frozen=True, slots=True)
class Active(Generic[R]):
    """An open transaction."""

    attempt: Attempt
    phase: Phase
    covers: R
    is_replay: bool = False  # an earlier attempt covered the same: it grows no more

    @property
    def txid(self) -> int:
        """Its number in the line."""
        return self.attempt.txid


class Coordinator(Generic[R]):
    """Numbers a line's transactions and says which may be committed (promise 14).

    Methods that take an attempt answer False, or nothing, and change nothing, unless it is the
    live attempt of an open transaction that is in the phase for it.
    """

    def __init__(
        self,
        *,
        max_active: int,
        committed: int = 0,
        recorded: Sequence[tuple[Attempt, R]] = (),
        attempts: Mapping[int, int] | None = None,
        least_attempt: int = 1,
    ) -> None:
        """Go on after `committed`. Raises BrokenLine.

        `recorded` are those that stand in the store and are not committed, the next txid first:
        each is PLANNED again, as it was, under the attempt after the one recorded. `attempts`
        tells the last recorded attempt of txids that are to be planned anew; where none is known
        they begin with `least_attempt`.
        """
        if committed < 0:
            raise BrokenLine(f"txid {committed} is committed; 0 or more is allowed")
        self._max_active = max_active
        self._committed = committed
        self._tries = dict(attempts or {})
        self._least_attempt = least_attempt
        self._active: list[Active[R]] = []
        for txid, (attempt, covers) in enumerate(recorded, committed + 1):
            if attempt.txid != txid or attempt.number < 1:
                found = f"txid {attempt.txid} in attempt {attempt.number}"
                raise BrokenLine(f"{found} where txid {txid} was to come")
            self._tries[txid] = attempt.number
            self._active.append(Active(self._next(txid), Phase.PLANNED, covers, is_replay=True))

    @property
    def committed(self) -> int:
        """The last txid that is committed in every sink; 0: none."""
        return self._committed

    @property
    def active(self) -> Sequence[Active[R]]:
        """The open transactions in the order of their txids."""
        return tuple(self._active)

    @property
    def newest(self) -> Active[R] | None:
        """The open one with the highest txid."""
        return self._active[-1] if self._active else None

    @property
    def may_begin(self) -> bool:
        """Whether fewer than max_active are open."""
        return len(self._active) < self._max_active

    def of(self, txid: int) -> Active[R] | None:
        """The open transaction of that txid."""
        place = txid - self._committed - 1
        return self._active[place] if 0 <= place < len(self._active) else None

    def begin(self, covers: R) -> Attempt:
        """Number the next one; it is PLANNED until `recorded`. Raises TooManyActive."""
        if not self.may_begin:
            raise TooManyActive(self._max_active)
        attempt = self._next(self._committed + len(self._active) + 1)
        self._active.append(Active(attempt, Phase.PLANNED, covers))
        return attempt

    def grow(self, attempt: Attempt, covers: R) -> bool:
        """The newest covers more; what is new may be emitted once that is recorded as well.

        False for one that is not the newest, is processed, or is a replay: what was recorded
        before a crash may have been committed as it was.
        """
        found = self._live(attempt, Phase.PLANNED, Phase.PROCESSING)
        if found is None or found is not self.newest or found.is_replay:
            return False
        self._put(replace(found, covers=covers))
        return True

    def recorded(self, attempt: Attempt) -> bool:
        """This attempt is stored: its records may be emitted."""
        return self._moved(attempt, Phase.PROCESSING, Phase.PLANNED)

    def processed(self, attempt: Attempt) -> bool:
        """Each of its records has its rows ready, was filtered, or has its letter."""
        return self._moved(attempt, Phase.PROCESSED, Phase.PROCESSING)

    def next_commit(self) -> Active[R] | None:
        """The lowest that is not being committed, if it is PROCESSED: it is COMMITTING now.

        Several may be COMMITTING; whoever commits them keeps to this order.
        """
        for each in self._active:
            if each.phase is not Phase.COMMITTING:
                moved = self._moved(each.attempt, Phase.COMMITTING, Phase.PROCESSED)
                return self.of(each.txid) if moved else None
        return None

    def done(self, attempt: Attempt) -> bool:
        """It is committed in every sink. Raises OutOfOrder unless it is the lowest open one."""
        if self._live(attempt, Phase.COMMITTING) is None:
            return False
        lowest = self._active[0].txid
        if attempt.txid != lowest:
            raise OutOfOrder(attempt.txid, lowest)
        del self._active[0]
        self._tries.pop(lowest, None)
        self._committed = lowest
        return True

    def not_done(self, attempt: Attempt) -> bool:
        """It is known not to be committed, nor can it be any more without another call.

        It is PROCESSED again, and so are those that were to be committed after it.
        """
        if self._live(attempt, Phase.COMMITTING) is None:
            return False
        for each in self._from(attempt.txid):
            self._moved(each.attempt, Phase.PROCESSED, Phase.COMMITTING)
        return True

    def fail(self, attempt: Attempt) -> Sequence[Attempt]:
        """It fails, and every later one: each is PLANNED again, as it was, in a new attempt.

        Returns the new attempts, none if it was stale. Raises OutcomePending while one of them
        is COMMITTING, since it may turn out to be committed.
        """
        if self._live(attempt, *Phase) is None:
            return ()
        failed = self._from(attempt.txid)
        self._known(failed)
        for each in failed:
            again = self._next(each.txid)
            self._put(Active(again, Phase.PLANNED, each.covers, is_replay=True))
        return tuple(each.attempt for each in self._from(attempt.txid))

    def forget_after(self, txid: int) -> Sequence[Active[R]]:
        """Drop those after `txid`: the same txids are planned anew, in higher attempts.

        Only for opaque transactions, and only for those that no sink can have committed. Returns
        what was dropped. Raises OutcomePending while one of them is COMMITTING.
        """
        dropped = self._from(txid + 1)
        self._known(dropped)
        del self._active[len(self._active) - len(dropped) :]
        return dropped

    def _next(self, txid: int) -> Attempt:
        number = max(self._tries.get(txid, 0) + 1, self._least_attempt)
        self._tries[txid] = number
        return Attempt(txid, number)

    def _from(self, txid: int) -> Sequence[Active[R]]:
        return tuple(self._active[max(txid - self._committed - 1, 0) :])

    def _live(self, attempt: Attempt, *phases: Phase) -> Active[R] | None:
        found = self.of(attempt.txid)
        return found if found and found.attempt == attempt and found.phase in phases else None

    def _moved(self, attempt: Attempt, to: Phase, since: Phase) -> bool:
        found = self._live(attempt, since)
        if found is not None:
            self._put(replace(found, phase=to))
        return found is not None

    def _put(self, changed: Active[R]) -> None:
        self._active[changed.txid - self._committed - 1] = changed

    @staticmethod
    def _known(those: Sequence[Active[R]]) -> None:
        for each in those:
            if each.phase is Phase.COMMITTING:
                raise OutcomePending(each.txid)
