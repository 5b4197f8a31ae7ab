"""Why a tree has expired: which bolt keeps a tuple of it."""

from functools import cached_property

from topology.advanced_runner import AdvancedRunner, late
from topology.outcome import Failure


class Overdue:
    """Tells of the trees that expired in one turn. The owner thread calls it.

    A bolt with a time-out of its own fails what it keeps by itself, before the tree expires.
    """

    def __init__(self, message_timeout_seconds: float, advanced: AdvancedRunner) -> None:
        self._general = message_timeout_seconds
        self._advanced = advanced

    @cached_property
    def _holders(self) -> dict[int, str]:
        return self._advanced.holders()

    def of(self, owner: int) -> Failure:
        """The failure of an expired record, or joint tree."""
        general = f"message_timeout_seconds={self._general:g}"
        step = self._holders.get(owner)
        if step is not None:
            return Failure(step, TimeoutError(late(step, general)))
        reason = f"the record's tree was not resolved in time: {general}"
        keepers = sorted(set(self._holders.values()))
        if keepers:  # a tuple of several records is kept under a number of its own
            reason += f"; perhaps one of these bolts keeps a tuple of it: {', '.join(keepers)}"
        return Failure("topology", TimeoutError(reason))
