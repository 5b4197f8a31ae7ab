"""What an operator sees of a process: its health and metrics over HTTP, its descriptors."""

import contextlib
import json
import os
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from service.devservers.server import free_ports
from tests.support.patience import seconds

_ANSWER_SECONDS = seconds(5.0)


@dataclass(frozen=True)
class Window:
    """The HTTP port of one process; `environment` makes it listen there."""

    port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def environment(self) -> dict[str, str]:
        return {"HEADRACE_HTTP__PORT": str(self.port)}

    def problems(self) -> list[str] | None:
        """Why it is not ready; nothing if it is, None if nobody answers."""
        return self._problems("/health/ready")

    def live(self) -> list[str] | None:
        """Why a restart would help; nothing if it would not, None if nobody answers."""
        return self._problems("/health/live")

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels; nan when nobody answers, or there is none."""
        lines = (self._get("/metrics") or b"").decode().splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in found) if found else float("nan")

    def _problems(self, path: str) -> list[str] | None:
        told = self._get(path)
        return None if told is None else list(json.loads(told)["problems"])

    def _get(self, path: str) -> bytes | None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()


def descriptors(pid: int, kind: str = "") -> int:
    """How many a process has open; those of a kind, such as "pipe:" or "socket:", or all."""
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += os.readlink(each).startswith(kind)  # noqa: PTH115 - it is no path
    return found
