"""Time-keeping: which trees are too old, which are only slow, and which wait for a retry."""

import numpy as np

from acker.acker import Acker
from service.emitter import tree_seconds
from service.joints import Joints
from service.letters import Letters
from service.outlet import Outlet
from service.overdue import Overdue
from service.reader import Reader
from topology.advanced_runner import AdvancedRunner
from topology.complaints import Complaints
from topology.running.runners import Runners

_EXPIRE_EVERY_SECONDS = 0.5
_SPARE_SECONDS = 1e-5  # per value that waits: looking at all of them costs a hundredth of it


class Timekeeper:
    """Expires the trees that are too old. The owner thread calls everything.

    What waits for a sink, for a worker or for the dead letters' broker is slow, not lost: the
    time of its tree begins anew, so a tree expires only while a bolt has a value of it.
    """

    def __init__(
        self,
        acker: Acker,
        joints: Joints,
        runners: Runners,
        outlets: list[Outlet],
        advanced: AdvancedRunner,
        reader: Reader,
        letters: Letters,
        complaints: Complaints,
        *,
        message_timeout_seconds: float,
    ) -> None:
        self._message_timeout_seconds = message_timeout_seconds
        self._acker = acker
        self._joints = joints
        self._runners = runners
        self._outlets = outlets
        self._advanced = advanced
        self._reader = reader
        self._letters = letters
        self._complaints = complaints
        self._expire_due = 0.0
        self._spare_due = 0.0

    def overdue(self) -> Overdue:
        """What tells why the trees of this turn have expired."""
        return Overdue(self._message_timeout_seconds, self._advanced)

    def num_blocked(self) -> int:
        """How many trees cannot resolve before the retry of a record that holds their key."""
        runners = self._runners
        if not runners.held or not all(map(self._reader.comes_again, runners.holders())):
            return 0  # a holder that does not come again is soon released
        if not self._joints and runners.num_blocked < self._acker.in_flight:
            return 0  # others are on their way: no need to list those that are blocked
        blocked = np.array(runners.blocked(), np.int64)
        trees = np.unique(self._joints.with_anchors(blocked))
        return int(np.count_nonzero(self._acker.owners(trees) >= 0))

    def expire(self, now: float) -> None:
        """Fail the trees that are too old; now and then, however often it is called.

        `Acker.drain` gives them. What else is done only now and then is done with it: complaints
        are told, and keys are released whose holder does not come again.
        """
        if now < self._expire_due:
            return
        self._expire_due = now + min(_EXPIRE_EVERY_SECONDS, self._acker.tick_seconds / 4)
        self._complaints.tell()
        self._advanced.forget_resolved()
        # A call of an earlier try may fail when its record is complete, or another process's.
        again = self._reader.comes_again
        self._runners.release([o for o in self._runners.holders() if not again(o)])
        if now >= self._spare_due:
            self._spare(now)
        self._acker.expire(now)

    def _spare(self, now: float) -> None:
        """Let no time pass for what waits: it is slow, not lost. Rarer the more that is."""
        reset = self._joints.reset_timeout
        count = 0
        for outlet in self._outlets:
            for trees in outlet.trees():
                reset(trees)
        for step, waiting in self._runners.waiting():
            reset(np.array(waiting, np.int64), tree_seconds(step))
            count += len(waiting)
        reset(np.array(self._letters.trees(), np.int64))
        self._spare_due = now + min(count * _SPARE_SECONDS, self._acker.tick_seconds / 2)
