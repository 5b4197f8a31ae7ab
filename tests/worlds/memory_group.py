"""A memory group of the kernel: what is in it is killed when it takes more than it may."""

import subprocess
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ROOT = Path("/sys/fs/cgroup")
_JOIN = 'echo $$ > "$0" && exec "$@"'


class MemoryGroup:
    """Made on entry, of version 1 or 2, whichever the system has; needs root."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        name = f"headrace-{uuid.uuid4().hex[:8]}"
        self._is_first = (_ROOT / "memory").is_dir()
        self._folder = (_ROOT / "memory" if self._is_first else _ROOT) / name

    def __enter__(self) -> Self:
        self._folder.mkdir()
        limit = "memory.limit_in_bytes" if self._is_first else "memory.max"
        (self._folder / limit).write_text(str(self._limit))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # somebody is in it still, after a failure
            self._folder.rmdir()

    def launch(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a process in the group, as `subprocess.Popen` would."""
        joined = str(self._folder / "cgroup.procs")
        return subprocess.Popen(["sh", "-c", _JOIN, joined, *command], **options)

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed for it."""
        told = "memory.oom_control" if self._is_first else "memory.events"
        facts = dict(line.split() for line in (self._folder / told).read_text().splitlines())
        return int(facts["oom_kill"])
