"""Host names that a process can resolve, or cannot any more: hosts of its own. Needs root."""

import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.support.patience import until

_MOUNT = (
    'mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/resolv.conf && shift 2 && exec "$@"'
)


class Names:
    """Names that lead to 127.0.0.1, as long as they are known; no other name server is asked."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._hosts = folder / "hosts"
        self._resolver = folder / "resolv.conf"
        self._names = names
        self._resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self.forget()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command that is to have them; the process stays the same."""
        mount = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh")
        return (*mount, str(self._hosts), str(self._resolver))

    def know(self) -> None:
        self._hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in self._names))

    def forget(self) -> None:
        self._hosts.write_text("")


_CHUNK = 64 * 1024


class SmallDisk:
    """A tmpfs of so many megabytes, mounted at `path` while the `with` lasts."""

    def __init__(self, path: Path, megabytes: int = 16) -> None:
        self.path = path
        self._size = f"size={megabytes}m"
        self._ballast = path / "ballast"

    def __enter__(self) -> Self:
        """Mount it. Raises CalledProcessError, as where the user is not root."""
        self.path.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", self._size, "tmpfs", str(self.path))
        return self

    def __exit__(self, *_error: object) -> None:
        _run("umount", "--lazy", str(self.path))

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for size in (_CHUNK, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:  # no space left
                    continue

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    @contextmanager
    def full(self) -> Iterator[None]:
        self.fill()
        try:
            yield
        finally:
            self.free()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing may be written meanwhile (EROFS), though SQLite has its file open."""
        path = str(self.path)
        _run("mount", "--bind", path, path)
        try:
            _run("mount", "-o", "remount,bind,ro", path)
            yield
        finally:
            _run("umount", "--lazy", path)


@contextmanager
def immutable(folder: Path) -> Iterator[None]:
    """Nothing below a folder may be changed or made, by root neither (EPERM): chattr's +i."""
    _run("chattr", "-R", "+i", str(folder))
    try:
        yield
    finally:
        _run("chattr", "-R", "-i", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


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

    def __exit__(self, *_error: object) -> None:
        outside = _GROUPS / "cgroup.procs"
        for process in (self._group / "cgroup.procs").read_text().split():
            outside.write_text(process)
        until("the group is empty", lambda: not (self._group / "cgroup.procs").read_text())
        self._group.rmdir()

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("sh", "-c", f'echo $$ > {self._group}/cgroup.procs && exec "$@"', "sh")

    @property
    def kills(self) -> int:
        lines = (self._group / "memory.oom_control").read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])


_MOUNTED = "loop,commit=600"  # nothing is written back meanwhile but what is synced


class Disk:
    """A file system of its own at `path`; what is not synced is lost with the power.

    `image` keeps what a power cut would leave just now; `after` mounts such an image in its place.
    """

    def __init__(self, folder: Path, megabytes: int = 32) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        self._folder = folder
        self._file = folder / "disk.ext4"
        self._file.touch()
        os.truncate(self._file, megabytes << 20)
        _run("mkfs.ext4", "-q", str(self._file))
        self._images = 0

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """The disk is there meanwhile. Raises CalledProcessError where the user is not root."""
        with self.after(self._file):
            yield

    def image(self) -> Path:
        """Copy what the disk holds, without what the kernel only has in memory."""
        self._images += 1
        copy = self._folder / f"image-{self._images}.ext4"
        _run("cp", "--sparse=always", str(self._file), str(copy))
        return copy

    @contextmanager
    def after(self, image: Path) -> Iterator[None]:
        """The disk is there as it was when the power was cut, its journal replayed."""
        _run("mount", "-o", _MOUNTED, str(image), str(self.path))
        try:
            yield
        finally:
            _run("umount", "--lazy", str(self.path))
