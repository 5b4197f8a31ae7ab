"""Schemas are fetched on a thread of their own, while the owner thread goes on."""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from queue import SimpleQueue

from topology.payloads.registry.patience import Patience
from topology.record import Reject, Retry

BURST_SECONDS = 1.0
SHARE = 0.1
AGAIN_SECONDS = 1.0  # a registry that did not answer is left alone for so long
FORGET_SECONDS = 60.0  # and an answer of "there is no such schema" is believed for so long
MOST = 1_024  # schemas that are waited for, or are known not to be there


@dataclass(slots=True)
class _Errand:
    run: Callable[[], object]
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Fetching:
    """Runs what has to ask the registry, once per key at a time, on the thread `name`.

    Its methods are called by one thread, the bolt's. `fetch` waits, but all waits together
    take at most a tenth of the time (and a second at first).
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._patience = Patience(BURST_SECONDS, SHARE)
        self._errands: dict[Hashable, _Errand] = {}
        self._verdicts: dict[Hashable, tuple[float, Exception]] = {}
        self._queue: SimpleQueue[_Errand | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start the thread. It is a daemon: a registry that hangs holds up no exit."""
        self._errands.clear()
        self._queue = SimpleQueue()  # an earlier thread may still be about to end with its own
        self._thread = threading.Thread(
            target=_work, args=(self._queue,), name=self._name, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Have the thread end when what it does has ended. May be called twice."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None

    @property
    def here(self) -> bool:
        """Whether the caller is the fetching thread."""
        return threading.current_thread() is self._thread

    def fetch(self, key: Hashable, run: Callable[[], object]) -> None:
        """Have `run` called there, and return when it has returned.

        Raises Retry if that takes longer than may be waited; asked again, it goes on waiting
        for the same call. What `run` raises is passed on: a Reject again and again for a
        minute, anything else for a second.
        """
        now = self._clock()
        if (verdict := self._verdicts.get(key)) is not None:
            if now < verdict[0]:
                raise verdict[1].with_traceback(None)  # else it grows with each time
            del self._verdicts[key]
        errand = self._errands.get(key) or self._send(key, run)
        if not errand.done.wait(self._patience.left(now)):
            self._patience.spend(self._clock() - now)
            raise Retry("the schema is being fetched")
        self._patience.spend(self._clock() - now)
        del self._errands[key]
        if errand.error is not None:
            seconds = FORGET_SECONDS if isinstance(errand.error, Reject) else AGAIN_SECONDS
            self._remember(key, self._clock() + seconds, errand.error)
            raise errand.error

    def _send(self, key: Hashable, run: Callable[[], object]) -> _Errand:
        if len(self._errands) >= MOST:
            done = [each for each, errand in self._errands.items() if errand.done.is_set()]
            for each in done:
                del self._errands[each]  # the schema is cached, or will be asked for again
            if not done:
                raise Retry(f"{MOST} schemas are being fetched")
        errand = self._errands[key] = _Errand(run)
        self._queue.put(errand)
        return errand

    def _remember(self, key: Hashable, until: float, error: Exception) -> None:
        if len(self._verdicts) >= MOST:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[key] = (until, error)


def _work(queue: "SimpleQueue[_Errand | None]") -> None:
    while (errand := queue.get()) is not None:
        try:
            errand.run()
        except Exception as error:  # noqa: BLE001  # passed on to who waits
            errand.error = error
        errand.done.set()
