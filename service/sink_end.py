"""What the ends of sinks have in common, for every guarantee and on both engines."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from sinks.tries import WriteRetries
from sinks.writer import Done, SinkWriter
from topology.histogram import Histogram
from topology.sink import Fence, Sink, Staged
from topology.steps import SinkStep


class SinkEnd:
    """One sink step's writer, and figures.

    The owner thread calls everything; `on_done` is called by the writer's threads.
    """

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        on_done: Callable[[Done], object],
        *,
        at_most_once: bool = False,
        write_retries: WriteRetries | None,
        at: Callable[[str], object] | None,
    ) -> None:
        """`sink` is what the writer's threads call."""
        self.step = step
        self.name = step.name
        self.writer = SinkWriter(
            sink, on_done, at_most_once=at_most_once, retries=write_retries, at=at
        )
        self.rows_written = 0
        self.batches_written = 0
        self.rows_rejected = 0
        self.write_seconds = 0.0
        self.bytes_written: int | None = 0
        self.write_times = Histogram()

    def start(self) -> None:
        """Start the writer's threads."""
        self.writer.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Stop them; False if one did not end in time."""
        return self.writer.stop(timeout_seconds)

    def _count(self, rows: int, rejected: int, num_bytes: int | None, seconds: float) -> None:
        """Count a batch that is durable now; its commit took so long."""
        self.rows_written += rows
        self.rows_rejected += rejected
        self.batches_written += 1
        self.write_seconds += seconds
        self.write_times.add(seconds)
        if self.bytes_written is not None and num_bytes is not None:
            self.bytes_written += num_bytes


class GroupWork(Protocol):
    """What a sink has to do for a group."""

    number: int  # of the sink's groups; 0: it was not asked yet
    staged: Staged | None
    is_done: bool
    num_bytes: int | None  # of its rows as columns; None: it is not known


Work = TypeVar("Work", bound=GroupWork)


class GroupsEnd(SinkEnd, Generic[Work]):
    """One sink step that is given groups of transactions."""

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        on_done: Callable[[Done], object],
        *,
        write_retries: WriteRetries | None,
        at: Callable[[str], object] | None,
    ) -> None:
        super().__init__(step, sink, on_done, write_retries=write_retries, at=at)
        self._groups = 0
        self._works: dict[int, Work] = {}
        self._committing: Work | None = None

    def fence(self, fences: list[Fence]) -> None:
        """Raise the epochs of lines in the background."""
        self.writer.fence(fences)

    def commit(self, work: Work) -> None:
        """Have a group committed that is staged."""
        if work.staged is not None and not work.is_done:
            self._committing = work
            self.writer.commit(work.staged)

    def _asked(self, work: Work) -> int:
        """Note that a group is about to be staged; its number."""
        self._groups += 1
        work.number = self._groups
        self._works[work.number] = work
        return work.number

    def _ended(self) -> Work:
        """The group whose commit is under way, which has ended."""
        work, self._committing = self._committing, None
        if work is None:
            raise RuntimeError(f"sink '{self.name}' ended a commit that it was not given")
        return work

    def _durable(self, seconds: float, rejected: int | None = None) -> Work:
        """Note that the commit under way, which took so long, made its group durable."""
        work = self._ended()
        del self._works[work.number]
        work.is_done = True
        if work.staged is not None:
            found = len(work.staged.rejected) if rejected is None else rejected
            self._count(work.staged.num_rows, found, work.num_bytes, seconds)
        return work
