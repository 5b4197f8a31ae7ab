"""One sink step on the spark engine: what tasks have staged for it is committed here."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.sink_buffer import GroupBuffer
from service.spark_engine.handed import Handed, HandsOn
from service.spark_engine.spool import SpoolStager
from sinks.tries import WriteRetries
from sinks.writer import Done
from topology.errors import SinkFailed
from topology.sink import Share, Sink, Staged, Stager
from topology.steps import SinkStep


@dataclass(frozen=True, slots=True)
class RangeTold:
    """What a sink's threads report."""

    outlet: "RangeOutlet"
    done: Done


@dataclass(slots=True, eq=False)
class RangeWork:
    """What one sink has to do for one try of a group."""

    outlet: "RangeOutlet"
    handed: Handed
    shares: tuple[Share, ...]
    num_rows: int  # that tasks handed over
    number: int = 0  # of the sink's groups; 0: it was not asked yet
    staged: Staged | None = None
    is_done: bool = False  # it is durable, or there is nothing to do
    num_bytes: int | None = None  # tasks have the rows

    @property
    def is_staged(self) -> bool:
        """Whether it can be committed, or there is nothing to commit."""
        return self.is_done or self.staged is not None


class RangeOutlet(GroupBuffer[RangeWork]):
    """One sink step. The owner thread calls everything; `on_told` is called by the writer's."""

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        on_told: Callable[[RangeTold], object],
        *,
        write_retries: WriteRetries | None = None,
        at: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(
            step,
            HandsOn(sink.name, sink),
            lambda done: on_told(RangeTold(self, done)),
            write_retries=write_retries,
            at=at,
        )
        self._sink = sink
        self.bytes_written = None

    @property
    def rows_pending(self) -> int:
        """Rows that tasks have handed over, and that are not durable."""
        return sum(work.num_rows for work in self._works.values())

    def stager(self, folder: str | None) -> tuple[Stager, bool]:
        """What tasks stage with, and whether it does so where the table lies.

        Else rows come by files, in a new folder below one that executors share. Raises SinkFailed
        where there is no such folder, and what the sink raises.
        """
        stager = self._sink.stager()
        if stager is not None:
            return stager, True
        if folder is None:
            raise SinkFailed(
                f"sink '{self.name}' is written by the driver, and its rows come by files in the "
                "warehouse; on the spark engine that must be a folder, not a URI, for such a sink"
            )
        return SpoolStager(f"{folder}/{uuid.uuid4().hex}"), False

    def stage(self, work: RangeWork) -> None:
        """Have what tasks made put together. Without shares it is done: the sink has the rows."""
        if not work.shares:
            work.is_done = True
            return
        self.writer.stage(work.handed.as_group(self._asked(work), work.shares))

    def staged(self, number: int, staged: Staged) -> RangeWork | None:
        """Learn that a group is ready; None: nobody wants it any more, and it is discarded."""
        work = self._works.get(number)
        if work is None:
            self.writer.discard(staged)
            return None
        work.staged = staged
        return work

    def ended(self, number: int) -> RangeWork | None:
        """Learn that a group cannot be made ready; None: nobody wanted it."""
        return self._works.pop(number, None)

    def committed(self, seconds: float) -> RangeWork:
        """Learn that the commit under way is durable."""
        work = self._committing
        return self._durable(seconds, 0 if work is None else work.handed.num_rejected)

    def not_committed(self) -> RangeWork:
        """Learn that the commit under way has ended, and made nothing durable."""
        return self._ended()

    def discard(self, work: RangeWork) -> None:
        """Let go of what will not be committed. What is being staged is discarded then."""
        self._works.pop(work.number, None)
        if work.is_done:
            return
        if work.staged is not None:
            self.writer.discard(work.staged)
        elif not work.number:
            self.let_go(work.handed)

    def let_go(self, handed: Handed) -> None:
        """Let go of what tasks have staged, and nobody was given."""
        self.writer.discard(handed.as_staged())
