"""A Spark step at work: what stands between a batch of rows and an open sink."""

from typing import Protocol

from topology.sink import Batch, Staged


class Passage(Protocol):
    """A Spark step at work, in front of a sink that is open. One thread calls it at a time."""

    def stage(self, batch: Batch) -> Staged:
        """Have the sink make ready what the step makes of the rows.

        The rows that are named do not fit the step's columns. Raises SinkFailed when a row that
        came out of the step does not fit the sink; anything else is passing.
        """
        ...

    def close(self) -> None:
        """Let go of what was taken; the sink stays open."""
        ...
