"""Reference tables: loaded before the first record, refreshed by a thread beside the loop."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import structlog

from topology.errors import InvalidTopology, ReferenceLoadFailed
from topology.reference import LoadedTable, Reference
from topology.state import State

log = structlog.get_logger()

_PAUSE = 9  # times what catching up took: before it is done again
_AGAIN_SECONDS = 60.0  # at most so long after a refresh that failed comes the next


@dataclass(frozen=True, slots=True)
class ReferenceStatistics:
    reference: str
    rows: int
    age_seconds: float  # since the reading of the rows in place began
    loads: int
    failed_loads: int


class _Watched:
    """A table and its figures. The refreshing thread alone uses `due_at`."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.every = math.inf if reference.refresh_seconds is None else reference.refresh_seconds
        self.due_at = self.read_at = 0.0
        self.loads = self.failed_loads = 0
        self.follow_at = 0.0  # not before may a state catch up again


class References:
    """Loads a topology's reference tables and keeps them fresh.

    `read` asks the world for a table's rows: in `open` on the owner thread, then on the refreshing
    thread, for one table at a time. All else belongs to the owner thread, but for `refresh`.
    """

    def __init__(
        self,
        references: Sequence[Reference],
        read: Callable[[Reference], pa.Table],
        clock: Callable[[], float] = time.monotonic,
        before_change: Callable[[], object] = lambda: None,
        *,
        follows: bool = True,
    ) -> None:
        """Raises InvalidTopology when two tables have the same name.

        `before_change` is called by `poll` before rows change, so that no bolt is amid a chunk.
        With `follows`, look-ups in a state include what this process commits to it.
        """
        names = set[str]()
        for each in references:
            if each.name in names:
                raise InvalidTopology(
                    f"two references are named '{each.name}', one of them '{each.place}'; "
                    "give one of them another name="
                )
            names.add(each.name)
        self._watched = [_Watched(reference) for reference in references]
        states = [(w, w.reference) for w in self._watched if isinstance(w.reference, State)]
        self._followed = states if follows else []
        self._read = read
        self._clock = clock
        self._before_change = before_change
        self._ready: deque[tuple[_Watched, LoadedTable, float]] = deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Load every table. Raises ReferenceLoadFailed, or what `read` raises."""
        for _watched, state in self._followed:
            state.follow()
        for watched in self._watched:
            self._put_in_place(*self._load(watched))
            watched.due_at = self._clock() + watched.every
        if any(watched.reference.refresh_seconds for watched in self._watched):
            name = "headrace-references"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def poll(self) -> None:
        """Swap in refreshed rows, and rows that states have committed in this process.

        Called between chunks. At most a tenth of the time goes into catching up with a large state.
        """
        now = self._clock()
        news = [(w, s) for w, s in self._followed if s.has_news and w.follow_at <= now]
        if self._ready or news:
            self._before_change()
        while self._ready:
            self._put_in_place(*self._ready.popleft())
        for watched, state in news:
            began = self._clock()
            try:
                state.catch_up()
            except ReferenceLoadFailed as error:
                self._failed(watched, error, began)
            watched.follow_at = self._clock() + _PAUSE * (self._clock() - began)

    def refresh(self, now: float) -> float:
        """Load the tables that are due, and return when the next is. The thread calls it."""
        for watched in self._watched:
            if watched.due_at > now or self._stop.is_set():
                continue
            began = self._clock()
            try:
                self._ready.append(self._load(watched))
            except Exception as error:  # noqa: BLE001 - whatever it is, the old rows stay
                if self._stop.is_set():
                    break  # Spark ends with the run, under the load
                watched.due_at = self._clock() + min(watched.every, _AGAIN_SECONDS)
                self._failed(watched, error, began)
            else:
                watched.due_at = self._clock() + watched.every
        return min(watched.due_at for watched in self._watched)

    def statistics(self, now: float) -> tuple[ReferenceStatistics, ...]:
        return tuple(
            ReferenceStatistics(
                reference=watched.reference.name,
                rows=len(watched.reference) if watched.reference.is_loaded else 0,
                age_seconds=max(0.0, now - watched.read_at) if watched.loads else 0.0,
                loads=watched.loads,
                failed_loads=watched.failed_loads,
            )
            for watched in self._watched
        )

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop the thread and unload the tables. A load that hangs is abandoned."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        for watched in self._watched:
            watched.reference.unload()

    def _load(self, watched: _Watched) -> tuple[_Watched, LoadedTable, float]:
        began = self._clock()
        return watched, watched.reference.read(self._read(watched.reference)), began

    def _run(self) -> None:
        due = min(watched.due_at for watched in self._watched)
        while not self._stop.wait(max(0.0, due - self._clock())):
            due = self.refresh(self._clock())

    def _failed(self, watched: _Watched, error: Exception, at: float) -> None:
        watched.failed_loads += 1
        again = watched.due_at - self._clock()
        log.warning(
            "reference_refresh_failed",
            reference=watched.reference.name,
            error=str(error),
            age_seconds=round(at - watched.read_at, 1),
            retry_in_seconds=None if math.isinf(again) else round(again, 1),
        )

    def _put_in_place(self, watched: _Watched, loaded: LoadedTable, read_at: float) -> None:
        try:
            watched.reference.use(loaded)
        except ReferenceLoadFailed as error:  # what was committed meanwhile is too much
            self._failed(watched, error, read_at)
        watched.read_at = read_at
        watched.loads += 1
        log.info(
            "reference_loaded",
            reference=watched.reference.name,
            rows=loaded.num_rows,
            seconds=round(self._clock() - read_at, 3),
        )
