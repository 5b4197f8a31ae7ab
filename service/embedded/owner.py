"""The pid file of a server: whose it is, and stopping one whose owner is gone."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class PidFile:
    """Names the process of a server and the process that started it."""

    path: Path

    def write(self, pid: int) -> None:
        """Note a server that this process has just started."""
        self.path.write_text(f"{pid} {os.getpid()}\n", encoding="ascii")

    def clear(self) -> None:
        """Note that no server runs."""
        self.path.unlink(missing_ok=True)

    def running(self) -> int | None:
        """Return the noted server's process id if it still lives and runs in this directory.

        A process id alone proves nothing, since the system uses them again: the command
        line must name this directory. Where there is no /proc the answer is None.
        """
        noted = self._read()
        if noted is None:
            return None
        folder = os.fsencode(self.path.parent.absolute()) + b"/"
        return noted[0] if folder in _command_line(noted[0]) else None

    def living_owner(self) -> int | None:
        """Return the process that started the noted server, if it lives and is another one.

        A server whose owner has died is handed to another parent by the system.
        """
        noted = self._read()
        if noted is None:
            return None
        pid, owner = noted
        return owner if owner != os.getpid() and _parent(pid) == owner else None

    def stop(self, pid: int, within_seconds: float) -> None:
        """End a server that this object does not hold a handle of: SIGTERM, then SIGKILL."""
        deadline = time.monotonic() + within_seconds
        _signal(pid, signal.SIGTERM)
        _signal(pid, signal.SIGCONT)  # a frozen one could not end
        while self.running() == pid:
            if time.monotonic() > deadline:
                _signal(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        self.clear()

    def _read(self) -> tuple[int, int] | None:
        try:
            pid, owner = self.path.read_text(encoding="ascii").split()
            return int(pid), int(owner)
        except (FileNotFoundError, ValueError):
            return None


def _command_line(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int | None:
    try:
        status = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        return int(status.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
