"""Health: whether a restart would help (live), and whether work gets done (ready)."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from service.observability.snapshot import Snapshot

STALLED_SECONDS = 60.0  # a bolt that holds the loop longer than this is taken as hung
# Brokers end a transaction after fifteen minutes, unless they were told to allow longer ones.
TRANSACTION_SECONDS = 960.0
LETTERS_SECONDS = 10.0  # a broker that answers acknowledges a letter sooner


@dataclass(frozen=True, slots=True)
class Health:
    ok: bool
    problems: tuple[str, ...] = ()


class HealthCheck:
    """Judges the newest snapshot. Any thread may ask."""

    def __init__(
        self, snapshot: Callable[[], Snapshot | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._snapshot = snapshot
        self._clock = clock

    def live(self) -> Health:
        """Not live: only a restart can help.

        The loop has not turned for a minute; or no worker of a bolt has been left for as long,
        since each is stuck in a call, and no thread can be ended from outside.
        """
        snapshot = self._snapshot()
        last = snapshot.taken_at if snapshot is not None else None
        if last is None:
            return Health(ok=True)  # still starting; Kubernetes' startup probe bounds that
        silent = self._clock() - last
        if silent > STALLED_SECONDS:
            return Health(ok=False, problems=(f"the loop has stood still for {silent:.0f} s",))
        stuck = tuple(_stuck(snapshot, self._clock() - STALLED_SECONDS))
        return Health(ok=not stuck, problems=stuck)

    def startup(self) -> Health:
        """Not started: servers, sinks or Spark are still being opened, and the loop has not turned.

        From then on it is `live` that says whether a restart would help.
        """
        is_started = self._snapshot() is not None
        return Health(ok=is_started, problems=() if is_started else ("starting",))

    def ready(self) -> Health:
        """Not ready: records are not being processed and committed now."""
        snapshot = self._snapshot()
        if snapshot is None:
            return Health(ok=False, problems=("starting",))
        problems = list(self.live().problems) or list(_stuck(snapshot, math.inf))
        if not snapshot.settled:
            problems.append("partitions are still to be opened")
        problems += [f"{name} is halted: {why}" for name, why in snapshot.halted.items()]
        if not snapshot.kafka_available:
            problems.append("Kafka is away")
        if not snapshot.store_available:
            problems.append("ZooKeeper is away")
        problems += [
            f"sink '{sink.sink}' is failing: {sink.last_error}"
            for sink in snapshot.sinks
            if sink.failing_since is not None
        ]
        problems += [
            f"{part.partition} is held up at offset {part.ledger.fetched_to} by a transaction that "
            f"its producer has not ended for {part.transaction_wait_seconds:.0f} s"
            for part in snapshot.partitions
            if part.transaction_wait_seconds >= TRANSACTION_SECONDS
        ]
        waiting = snapshot.dead_letters_waiting_seconds
        if waiting >= LETTERS_SECONDS:
            problems.append(f"dead letters wait for their topic, for {waiting:.0f} s now")
        if snapshot.apart.failing_since is not None:
            problems.append(f"ranges fail on Spark: {snapshot.apart.last_error}")
        return Health(ok=not problems, problems=tuple(problems))


def _stuck(snapshot: Snapshot | None, since: float) -> Iterator[str]:
    """The bolts that have had no worker left since before that time."""
    for step, figures in snapshot.runners.items() if snapshot is not None else ():
        if figures.ended_since is not None and figures.ended_since < since:
            yield (
                f"bolt '{step}' stands still: {figures.abandoned} calls past their time-out have "
                "not returned, and no more may be begun beside them"
            )
