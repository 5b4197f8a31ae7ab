"""A Spark step at work: what stands between a group of rows and an open sink."""

from typing import Protocol

from topology.sink import Batch
from topology.transactional import Group, Staged


class Passage(Protocol):
    """A Spark step at work, in front of a sink that is open. One thread calls it at a time."""

    def stage(self, group: Group) -> Staged:
        """Have the sink make ready what the step makes of the rows.

        The rows that are named do not fit the step's columns. Raises SinkFailed when a row that
        came out of the step does not fit the sink; anything else is passing.
        """
        ...

    def write(self, batch: Batch) -> None:
        """Have the sink write what the step makes of the rows.

        Raises as `stage`, and RowsRejected for rows that do not fit the step's columns.
        """
        ...

    def close(self) -> None:
        """Let go of what was taken; the sink stays open."""
        ...
