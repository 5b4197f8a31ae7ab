"""A sampling profiler of one's own: where the main thread is, and which threads use the CPU.

A thread looks at the main thread's stack a hundred times a second. What a C function does
counts for the Python function that called it. The threads' processor time is the kernel's (Linux
only), so librdkafka's own threads are seen, too. Timed runs are never profiled.
"""

import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

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


class Sampler:
    """Samples the main thread while it is entered. `profile` tells afterwards."""

    def __init__(self) -> None:
        self._own: Counter[_Place] = Counter()
        self._with_callees: Counter[_Place] = Counter()
        self._samples = 0
        self._cpu: dict[int, tuple[str, float]] = {}
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

    def profile(self) -> dict[str, Any]:
        """Shares of the main thread's time by function, and of the CPU by thread, in per cent."""
        samples = max(self._samples, 1)
        shares: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self._cpu.values():
            if name != self._thread.name:
                shares[name] += seconds
        total = sum(shares.values()) or 1
        return {
            "samples": self._samples,
            "functions": [
                [
                    f"{place[0]}:{place[1].co_qualname}",
                    100 * own / samples,
                    100 * self._with_callees[place] / samples,
                ]
                for place, own in self._own.most_common(_FUNCTIONS)
            ],
            "threads": [[name, 100 * part / total] for name, part in _largest_first(shares)],
        }

    def _run(self) -> None:
        main = threading.main_thread().ident
        while not self._ended.wait(_INTERVAL_SECONDS):
            frame = sys._current_frames().get(main or 0)  # noqa: SLF001  # that is its name
            if frame is not None:
                self.take(frame)
            if self._samples % _THREADS_EVERY == 0:
                self._cpu.update(cpu_of_threads())

    def take(self, frame: FrameType) -> None:
        """Count one stack, given by its innermost frame."""
        self._samples += 1
        self._own[_place(frame)] += 1
        seen = set()
        outer: FrameType | None = frame
        while outer is not None:
            seen.add(_place(outer))
            outer = outer.f_back
        self._with_callees.update(seen)


def _largest_first(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def cpu_of_threads() -> dict[int, tuple[str, float]]:
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
