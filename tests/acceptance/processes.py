"""What runs on this machine, as /proc tells it."""

import contextlib
import os
import signal
import time
from pathlib import Path

from tests.support.patience import seconds

MARK = "ACCEPTANCE_RUN"  # a variable that every process started under a run inherits
_PROC = Path("/proc")


def marked(mark: str) -> dict[int, str]:
    """The living processes that carry a mark, with their command lines."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            carries = wanted in (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or somebody else's
            continue
        if carries and not _is_zombie(folder):
            found[int(folder.name)] = _command_line(folder)[:300]
    return found


def naming(text: str) -> dict[int, str]:
    """The living processes whose command line has a text in it."""
    found = {}
    for folder in _PROC.glob("[0-9]*"):
        line = _command_line(folder)
        if text in line and not _is_zombie(folder):
            found[int(folder.name)] = line[:300]
    return found


def lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    folder = _PROC / str(pid)
    return folder.exists() and not _is_zombie(folder)


def children(pid: int) -> list[int]:
    stats = {int(folder.name): _stat(folder) for folder in _PROC.glob("[0-9]*")}
    return [child for child, stat in stats.items() if stat and int(stat[1]) == pid]


def java_children(pid: int) -> list[int]:
    paths = {child: _executable(_PROC / str(child)) for child in children(pid)}
    return [child for child, path in paths.items() if path.endswith("/java")]


def ancestors(pid: int) -> list[int]:
    """Who started a process, who started that one, and so on; fewer once one of them is gone."""
    found: list[int] = []
    while stat := _stat(_PROC / str(found[-1] if found else pid)):
        if (parent := int(stat[1])) == 0:
            break
        found.append(parent)
    return found


def freeze(pid: int) -> None:
    """Suspend a process, and return when it is stopped."""
    os.kill(pid, signal.SIGSTOP)
    ends = time.monotonic() + seconds(10)
    while (stat := _stat(_PROC / str(pid))) and stat[0] not in "TZX":
        assert time.monotonic() < ends, f"process {pid} does not stop"
        time.sleep(0.001)


def freeze_tree(pid: int) -> None:
    freeze(pid)
    for child in children(pid):
        freeze(child)


def thaw_tree(pid: int) -> None:
    for each in (*children(pid), pid):
        thaw(each)


def thaw(pid: int) -> None:
    """Let a frozen process go on, if it is there still."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _command_line(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")


def _executable(folder: Path) -> str:
    try:
        return os.readlink(folder / "exe")  # noqa: PTH115
    except OSError:
        return ""


def _is_zombie(folder: Path) -> bool:
    stat = _stat(folder)
    return not stat or stat[0] in "ZX"


def _stat(folder: Path) -> list[str]:
    """State, parent, ... of a process; nothing when it is gone."""
    try:
        return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
