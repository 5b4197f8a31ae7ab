"""What the local engine has, and this one has none of: for the figures."""

from collections.abc import Mapping

from acker.acker import AckerStatistics
from topology.running.runner import RunnerStatistics


class NoTrees:
    """No record is in flight in this process."""

    def statistics(self) -> AckerStatistics:
        """Nothing."""
        return AckerStatistics(0, 0, 0, 0, 0, 0, 0, 0)


class NoPressure:
    """What is in flight is bounded by the groups that may be open at once."""

    holds_any = False
    seconds: Mapping[str, float] = {}


class NoCalls:
    """Bolts are called on executors."""

    def figures(self) -> dict[str, RunnerStatistics]:
        """Nothing."""
        return {}
