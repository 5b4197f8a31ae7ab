"""A disk of its own for a test, which can be full, or refuse to be written. Needs root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
