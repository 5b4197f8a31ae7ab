"""Little memory for a process: a group of the kernel's (cgroup v1). Needs root."""

import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.patience import until

_GROUPS = Path("/sys/fs/cgroup/memory")


class SmallMemory:
    """So many megabytes for all processes in it together, while the `with` lasts.

    The kernel kills one that asks for more.
    """

    def __init__(self, megabytes: int) -> None:
        self._bytes = megabytes * 1024 * 1024
        self._group = _GROUPS / f"headrace-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Self:
        """Make it. Raises OSError where that is not possible, as for who is not root."""
        self._group.mkdir()
        (self._group / "memory.limit_in_bytes").write_text(str(self._bytes))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        outside = _GROUPS / "cgroup.procs"
        for process in (self._group / "cgroup.procs").read_text().split():
            outside.write_text(process)
        until("the group is empty", lambda: not (self._group / "cgroup.procs").read_text())
        self._group.rmdir()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command that is to run in it; the process stays the same."""
        return ("sh", "-c", f'echo $$ > {self._group}/cgroup.procs && exec "$@"', "sh")

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        lines = (self._group / "memory.oom_control").read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])
