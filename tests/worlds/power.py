"""A disk whose power can be cut: an ext4 file system in a file. Needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
