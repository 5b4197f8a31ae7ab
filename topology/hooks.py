"""Hooks: what a user wants done when the service starts and stops, and partitions come and go."""


class Hooks:
    """Override what you need, and give it to `Topology.hooks`.

    The owner thread calls everything, so what takes long holds the records up. An exception
    of `started` ends the start; of the others it is logged, and nothing else happens.
    """

    def started(self) -> None:
        """Called once, before the bolts are opened."""

    def stopped(self) -> None:
        """Called once, after the bolts are closed, if `started` was."""

    def partition_assigned(self, topic: str, partition: int) -> None:
        """Called before the first record of a partition that is ours."""

    def partition_revoked(self, topic: str, partition: int) -> None:
        """Called once for each that was assigned: it is lost, halted, or the service stops."""
