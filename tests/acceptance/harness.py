"""A process of the service as a user runs it: a command, signals, what it prints and leaves."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.acceptance import processes
from tests.support import fork_server, patience
from tests.support.patience import until

REPOSITORY = Path(__file__).parents[2]
HEADRACE = Path(sys.executable).with_name("headrace")


class Process(Protocol):
    """What is asked of a process: of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


Launch = Callable[..., Process]


class Run:
    def __init__(
        self,
        command: list[str],
        output: Path,
        environment: dict[str, str],
        launch: Launch | None = None,
    ) -> None:
        """`launch` starts the process: by default a fork server if it is `headrace` itself.

        A fork preloads no library.
        """
        if launch is None:
            is_forked = command[0] == str(HEADRACE) and "LD_PRELOAD" not in environment
            launch = fork_server.shared().launch if is_forked else subprocess.Popen
        self.mark = uuid.uuid4().hex
        marks = {processes.MARK: self.mark, "PYTHONFAULTHANDLER": "1"}
        self._stdout = output.with_suffix(".out")
        self._stderr = output.with_suffix(".err")
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process = launch(
                command,
                cwd=REPOSITORY,
                env={**os.environ, **environment, **marks},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self._stdout.read_text()

    @property
    def errors(self) -> str:
        return self._stderr.read_text()

    def jvm(self) -> int:
        until("Spark runs", lambda: processes.java_children(self.pid) or not self.alive)
        return processes.java_children(self.pid)[0]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def until(self, what: str, holds: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until something holds; fail if the process ends before it does."""
        until(what, lambda: holds() or not self.alive, seconds, self.tail)
        assert self.alive, self.tail()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """`kill -9`, as a machine out of memory would; its JVM is left to itself."""
        self.process.kill()
        self.process.wait()

    def wait(self, seconds: float = 120.0) -> int:
        try:
            return self.process.wait(patience.seconds(seconds))
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler prints every thread's stack
            self.process.wait(patience.seconds(10))
            pytest.fail(f"still runs after {seconds:g} s; its log ends:\n{self.tail(200)}")

    def account(self) -> dict[str, Any]:
        return json.loads(self.output.splitlines()[-1])

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.errors.splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.errors.splitlines()[-lines:])

    def descendants(self) -> dict[int, str]:
        """All that this run has started and that still lives, itself included."""
        return processes.marked(self.mark)

    def end(self) -> None:
        """End it and all that it started, by their process ids."""
        if self.alive:
            self.kill()
        for pid in self.descendants():
            os.kill(pid, signal.SIGKILL)
