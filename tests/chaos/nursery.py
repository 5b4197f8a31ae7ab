"""Processes of the service that are forked from one that has imported all they need.

A new interpreter takes seconds of a processor before it is a replica, most of them to import;
a fork takes a fraction of one. So replicas can come and go every half second on two cores. What
is forked is a process like any other: it has its own pid, session, files and end.
"""

import faulthandler
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import IO, Any, Self

from tests.support.patience import seconds

MODULES = (
    "headrace.sinks",
    "service.cli.main",
    "service.cli.commands",
    "service.app",
    "partition.kafka.kafka_fetcher",
    "sinks.kafka.transactions",
    "kazoo.client",
    "uvloop",
    "pyarrow.parquet",
)
_REPOSITORY = Path(__file__).parents[2]
_LOOK_SECONDS = 0.01  # how often those that have ended are looked for
_ANSWER_SECONDS = seconds(60.0)
# So that numpy and pyarrow start no threads when they are imported: a fork would lack them.
_ALONE = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class Forked:
    """A process that the nursery has forked, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        """The exit code, or the signal as a negative number; None while it lives."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, if it lives."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Tell it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by `kill -9`."""
        self.send_signal(signal.SIGKILL)

    def end(self, code: int) -> None:
        """Take note of the end."""
        self.returncode = code
        self._ended.set()


class Nursery:
    """The one that is forked from; `launch` is used instead of `subprocess.Popen`."""

    def __init__(self) -> None:
        self._living: dict[int, Forked] = {}
        self._answers: Queue[Forked | None] = Queue()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery"],
            cwd=_REPOSITORY,
            env={**os.environ, **_ALONE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends all that live, and itself
        self._process.wait(_ANSWER_SECONDS)
        self._reader.join(_ANSWER_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def launch(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        **_always: Any,
    ) -> Forked:
        """Have a process forked that runs the `headrace` command with these arguments."""
        asked = {
            "command": list(command),
            "cwd": str(cwd),
            "environment": dict(env),
            "outputs": [stdout.name, stderr.name],
        }
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            forked = self._answers.get(timeout=_ANSWER_SECONDS)
        if forked is None:
            raise RuntimeError("the nursery has ended")
        return forked

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "code" in told:
                self._living.pop(told["pid"]).end(told["code"])
            else:
                self._living[told["pid"]] = forked = Forked(told["pid"])
                self._answers.put(forked)
        self._answers.put(None)


def main() -> None:
    """Import, then fork what standard input asks for, until it is closed."""
    for name in MODULES:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        raise RuntimeError("a module that was imported has started a thread")
    living: set[int] = set()
    buffered = b""
    while True:
        readable, _, _ = select.select([0], [], [], _LOOK_SECONDS)
        _reap(living)
        if not readable:
            continue
        read = os.read(0, 1 << 16)
        if not read:
            break
        *lines, buffered = (buffered + read).split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                _become(json.loads(line))
            living.add(pid)
            _tell(pid=pid)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _reap(living: set[int]) -> None:
    for pid in list(living):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            living.discard(pid)
            _tell(pid=pid, code=os.waitstatus_to_exitcode(status))


def _tell(**facts: int) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def _become(asked: Mapping[str, Any]) -> None:
    """Be the process that was asked for; does not return."""
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, path in enumerate(("/dev/null", *asked["outputs"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND
        os.dup2(os.open(path, flags), number)
    faulthandler.enable()
    sys.argv = asked["command"]
    from service.cli.main import main as headrace  # noqa: PLC0415 - imported already

    sys.exit(headrace())


if __name__ == "__main__":
    main()
