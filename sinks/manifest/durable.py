"""Files that outlast a machine that loses its power: written through to the disk, with their names.

A process that is killed loses nothing that it has written; a machine that stops does. An entry of
a log is durable, so all that it names has to be so before.
"""

import os
from collections.abc import Iterable
from pathlib import Path


def sync_file(path: Path) -> None:
    """Write a file's content through. Raises OSError."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Write the names in a folder through. Raises OSError."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_below(root: Path, files: Iterable[str]) -> None:
    """Write files below a folder through, and the names of all folders on the way to them."""
    folders: set[Path] = set()
    for file in files:
        sync_file(root / file)
        place = root
        for part in file.split("/"):
            folders.add(place)
            place /= part
    for folder in folders:
        sync_folder(folder)


def _sync(path: Path, flags: int) -> None:
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
