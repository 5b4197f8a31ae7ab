"""Where variants run: each in a process of its own, or, for a try, all in one."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryFile

import msgspec

from benchmarks.job import Figures, Job

TIMEOUT_SECONDS = 300.0
_POLL_SECONDS = 0.1
_END_SECONDS = 20.0
_COMMAND = (sys.executable, "-m", "benchmarks.child")

Meanwhile = Callable[[Job], None]


def run_alone(job: Job, meanwhile: Meanwhile | None = None) -> Figures:
    """Run a job in a process and session of its own.

    `meanwhile` is called again and again while it runs. Raises SystemExit, with what the
    process wrote, if it fails or does not end.
    """
    command = [*_COMMAND, msgspec.json.encode(job).decode()]
    ends = time.monotonic() + TIMEOUT_SECONDS
    with (
        TemporaryFile("w+", encoding="utf-8") as out,
        TemporaryFile("w+", encoding="utf-8") as err,
        subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True) as child,
    ):
        try:
            while meanwhile is not None and child.poll() is None and time.monotonic() < ends:
                meanwhile(job)
                time.sleep(_POLL_SECONDS)
            child.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SystemExit(_too_long(job)) from None
        finally:
            child.kill()
        out.seek(0)
        err.seek(0)
        if child.returncode:
            raise SystemExit(_failed(job, err.read()))
        figures: Figures = json.loads(out.read().splitlines()[-1])
        return figures


class Together:
    """One process that runs job after job, and keeps what they have loaded and started.

    It saves what a process and a JVM take to start, and the figures are worth nothing. It
    starts with the first job.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._errors = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - see `close`

    def run(self, job: Job, meanwhile: Meanwhile | None = None) -> Figures:
        """Run a job; see `run_alone`."""
        if self._child is None:
            self._child = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        asks, answers = self._child.stdin, self._child.stdout
        if asks is None or answers is None:
            raise AssertionError
        asks.write(msgspec.json.encode(job) + b"\n")
        asks.flush()
        ends = time.monotonic() + TIMEOUT_SECONDS
        answer = b""
        while not answer.endswith(b"\n"):
            if time.monotonic() > ends:
                self._child.kill()
                raise SystemExit(_too_long(job))
            if meanwhile is not None:
                meanwhile(job)
            if select.select([answers], [], [], _POLL_SECONDS)[0]:
                part = os.read(answers.fileno(), 1 << 16)
                if not part:  # it ends
                    self._child.wait(_END_SECONDS)
                    self._errors.seek(0)
                    raise SystemExit(_failed(job, self._errors.read()))
                answer += part
        figures: Figures = json.loads(answer)
        return figures

    def close(self) -> None:
        """End the process, and what it started."""
        child, self._child = self._child, None
        if child is not None:
            try:
                child.communicate(timeout=_END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
        self._errors.close()


def _too_long(job: Job) -> str:
    return f"variant {job.variant} ran for {TIMEOUT_SECONDS:g} s"


def _failed(job: Job, printed: str) -> str:
    return f"variant {job.variant} failed:\n{printed}"
