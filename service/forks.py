"""Refuses forks while a pipeline runs: a child would share its clients' sockets and locks.

librdkafka and kazoo work on threads of their own, and a fork has none of them. What a child does
with a client hangs, or writes between the parent's requests; and a child that comes back out of
the bolt would go on as a second owner of everything. So there is no child: the call that forks
raises `ForkRefused`, the parent goes on. Programs that are executed (`subprocess`), and processes
that multiprocessing spawns, share nothing and are not touched.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from topology.signals import Reject

_FORKS = ("os.fork", "os.forkpty")
_PIPES = ("parent_r", "child_w", "child_r", "parent_w")  # of multiprocessing.popen_fork

_lock = threading.Lock()
_installed = False
_running: dict[int, int] = {}  # runs that last, by process


class ForkRefused(Reject):
    """A process that runs a pipeline may not fork; no retry can help."""

    def __init__(self) -> None:
        super().__init__(
            "fork refused: a forked process would share the connections of this one to Kafka and "
            'ZooKeeper; use subprocess, or multiprocessing.get_context("spawn") or "forkserver"'
        )


@contextmanager
def refusing_forks() -> Iterator[None]:
    """Let `os.fork`, and all that calls it, raise ForkRefused meanwhile, on every thread."""
    global _installed  # noqa: PLW0603 - an audit hook stays for good, so there is one
    process = os.getpid()
    with _lock:
        if not _installed:
            sys.addaudithook(_audit)
            _installed = True
        _running[process] = _running.get(process, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _running[process] -= 1


def _audit(event: str, _arguments: tuple[Any, ...]) -> None:
    if event in _FORKS and _running.get(os.getpid()):
        _close_pipes(sys._getframe())  # noqa: SLF001 - there is no other way to the caller
        raise ForkRefused


def _close_pipes(frame: FrameType | None) -> None:
    """Close what multiprocessing has opened for the child: it leaves it open if the fork fails.

    A bolt that forks for each record would leave the process without descriptors.
    """
    while frame is not None:
        if frame.f_globals.get("__name__") == "multiprocessing.popen_fork":
            for name in _PIPES:
                if isinstance(descriptor := frame.f_locals.get(name), int):
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
            return
        frame = frame.f_back
