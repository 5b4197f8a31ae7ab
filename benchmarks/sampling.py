"""A sampling profiler of one's own: where the main thread is, and which threads use the CPU.

A thread looks at the main thread's stack a hundred times a second. What a C function does
counts for the Python function that called it. The threads' processor time is the kernel's (Linux
only), so librdkafka's own threads are seen, too. Timed runs are never profiled.
"""

import math
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, Self

_INTERVAL_SECONDS = 0.01
# So soon the main thread lets the sampler in. At Python's own 5 ms it would mostly be seen where
# it gives up the lock by itself, as in numpy.
_SWITCH_SECONDS = 1e-5
_THREADS_EVERY = 20  # samples
_FUNCTIONS = 12
_TASKS = Path("/proc/self/task")
_MAIN = "owner"
_LIBRDKAFKA = "librdkafka"

_Place = tuple[str, CodeType]  # a module's name and a function's code
_Cpu = dict[int, tuple[str, float]]  # by the kernel's number of a thread: name, seconds


class _Sample(NamedTuple):
    """Where the main thread was at a monotonic second: in which function, called by which."""

    at: float
    place: _Place
    stack: set[_Place]


class Sampler:
    """Samples the main thread while it is entered. `profile` tells afterwards."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._cpu: list[tuple[float, _Cpu]] = []  # by monotonic second, all threads so far
        self._ended = threading.Event()
        self._switch_seconds = sys.getswitchinterval()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        self._ended.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_seconds)

    def profile(self, since: float = -math.inf, until: float = math.inf) -> dict[str, Any]:
        """Shares of the main thread's time by function, and of the CPU by thread, in per cent.

        Only what was between two monotonic seconds counts.
        """
        taken = [sample for sample in self._samples if since <= sample.at <= until]
        own = Counter(sample.place for sample in taken)
        with_callees = Counter(place for sample in taken for place in sample.stack)
        shares: defaultdict[str, float] = defaultdict(float)
        before, after = self._cpu_at(since), self._cpu_at(until)
        for number, (name, seconds) in after.items():
            if name != self._thread.name:
                shares[name] += seconds - before.get(number, (name, 0.0))[1]
        total = sum(shares.values()) or 1
        samples = max(len(taken), 1)
        return {
            "samples": len(taken),
            "functions": [
                [
                    f"{place[0]}:{place[1].co_qualname}",
                    100 * count / samples,
                    100 * with_callees[place] / samples,
                ]
                for place, count in own.most_common(_FUNCTIONS)
            ],
            "threads": [[name, 100 * part / total] for name, part in _largest_first(shares)],
        }

    def _cpu_at(self, at: float) -> _Cpu:
        """What the threads had used by then."""
        found: _Cpu = {}
        for seen, cpu in self._cpu:
            if seen <= at:
                found = cpu
        return found

    def _run(self) -> None:
        main = threading.main_thread().ident
        while not self._ended.wait(_INTERVAL_SECONDS):
            frame = sys._current_frames().get(main or 0)  # noqa: SLF001  # that is its name
            if frame is not None:
                self.take(frame)
            if len(self._samples) % _THREADS_EVERY == 0:
                known = self._cpu[-1][1] if self._cpu else {}  # also those that have ended
                self._cpu.append((time.monotonic(), known | cpu_of_threads()))

    def take(self, frame: FrameType) -> None:
        """Count one stack, given by its innermost frame."""
        stack = set()
        outer: FrameType | None = frame
        while outer is not None:
            stack.add(_place(outer))
            outer = outer.f_back
        self._samples.append(_Sample(time.monotonic(), _place(frame), stack))


def _largest_first(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def cpu_of_threads() -> _Cpu:
    """This process's threads by the kernel's number: a name, and seconds of processor time."""
    if not _TASKS.is_dir():
        return {}
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    names[threading.main_thread().native_id] = _MAIN
    found = {}
    for task in _TASKS.iterdir():
        try:
            text = (task / "stat").read_text(encoding="utf-8")
        except OSError:  # it has just ended
            continue
        comm, after = text[text.index("(") + 1 :].rsplit(") ", 1)
        user, system = after.split()[11:13]
        number = int(task.name)
        name = names.get(number) or (_LIBRDKAFKA if comm.startswith("rdk:") else "other")
        found[number] = (name, (int(user) + int(system)) / os.sysconf("SC_CLK_TCK"))
    return found


def _place(frame: FrameType) -> _Place:
    return frame.f_globals.get("__name__", "?"), frame.f_code
