"""A fork server for service processes: each start is a fork of one that has imported the service.

A new interpreter spends seconds of processor time on imports before it is a replica; a fork spends
a fraction of one. A forked process is a process like any other: it has its own pid, session, files
and end. `/proc/<pid>/environ` and `cmdline` are those of the server.
"""

import atexit
import faulthandler
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import IO, Any, Self

from tests.support.patience import seconds

MODULES = (
    "headrace._surface",
    "headrace.sinks",
    "service.cli.main",
    "service.cli.run",
    "service.cli.check",
    "service.cli.dead_letters",
    "service.cli.import_storm",
    "service.cli.status",
    "service.cli.tables",
    "service.app",
    "partition.kafka.kafka_fetcher",
    "sinks.kafka.transactions_topic",
    "kazoo.client",
    "uvloop",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "sinks.tables.delta",
    "pyiceberg.catalog.sql",
    "psycopg",
    "pyspark.sql",
)
_REPOSITORY = Path(__file__).parents[2]
_ANSWER_SECONDS = seconds(60.0)
# Keep numpy and pyarrow from starting threads on import: a fork would lack them.
_SINGLE_THREADED = {
    "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false",
}  # fmt: skip


class Forked:
    """A forked process with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class ForkServer:
    """The client of a fork server; `launch` replaces `subprocess.Popen`."""

    def __init__(self) -> None:
        self._living: dict[int, Forked] = {}
        self._answers: Queue[Forked | None] = Queue()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server"],
            cwd=_REPOSITORY,
            env={**os.environ, **_SINGLE_THREADED},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="fork-server", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.stdin.close()  # it ends all that live, and itself
        self._process.wait(_ANSWER_SECONDS)
        self._reader.join(_ANSWER_SECONDS)
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
        """Fork a process that runs the `headrace` command with these arguments."""
        asked = {
            "command": list(command),
            "cwd": str(cwd),
            "environment": dict(env),
            "outputs": [stdout.name, stderr.name],
        }
        with self._lock:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            forked = self._answers.get(timeout=_ANSWER_SECONDS)
        if forked is None:
            raise RuntimeError("the fork server has ended")
        return forked

    def _read(self) -> None:
        for line in self._process.stdout:
            told = json.loads(line)
            if "code" in told:
                self._living.pop(told["pid"]).end(told["code"])
            else:
                self._living[told["pid"]] = forked = Forked(told["pid"])
                self._answers.put(forked)
        self._answers.put(None)


@functools.cache
def shared() -> ForkServer:
    """Return the fork server of this test process; it ends with the process."""
    server = ForkServer().__enter__()
    atexit.register(server.__exit__, None, None, None)
    return server


def headrace(
    *words: str, cwd: Path, env: Mapping[str, str], timeout: float = 120.0
) -> "subprocess.CompletedProcess[str]":
    """Run a `headrace` command to its end in a forked process. `env` extends this process's."""
    command = ["headrace", *words]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("out", "err")]
        with paths[0].open("wb") as stdout, paths[1].open("wb") as stderr:
            process = shared().launch(
                command, cwd=cwd, env={**os.environ, **env}, stdout=stdout, stderr=stderr
            )
        try:
            code = process.wait(seconds(timeout))
        finally:
            process.kill()
        out, err = (path.read_text(encoding="utf-8") for path in paths)
    return subprocess.CompletedProcess(command, code, out, err)


def main() -> None:
    """Import, then fork what standard input asks for, until it is closed."""
    for name in MODULES:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        raise RuntimeError("an imported module has started a thread")
    gc.freeze()  # collections in children copy no pages of these objects
    living: set[int] = set()
    ended = _wakeup_at_ends()
    buffered = b""
    while True:
        readable, _, _ = select.select([0, ended], [], [])
        if ended in readable:
            os.read(ended, 1 << 12)
            _reap(living)
        if 0 in readable:
            if not (read := os.read(0, 1 << 16)):
                break
            *lines, buffered = (buffered + read).split(b"\n")
            living.update(map(_fork, lines))
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _wakeup_at_ends() -> int:
    """Return a file descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return readable


def _fork(line: bytes) -> int:
    pid = os.fork()
    if pid == 0:
        _become(json.loads(line))
    _tell(pid=pid)
    return pid


def _reap(living: set[int]) -> None:
    for pid in list(living):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            living.discard(pid)
            _tell(pid=pid, code=os.waitstatus_to_exitcode(status))


def _tell(**facts: int) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def _become(asked: Mapping[str, Any]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # TMPDIR may differ
    for number, path in enumerate(("/dev/null", *asked["outputs"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND
        os.dup2(os.open(path, flags), number)
    faulthandler.enable()
    sys.argv = asked["command"]
    from service.cli.main import main as headrace  # noqa: PLC0415 - imported already

    sys.exit(headrace())


if __name__ == "__main__":
    main()
