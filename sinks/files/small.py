"""Which small files of a table to make large ones of. Pure."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

_SMALL = 0.75  # of the target: what is larger is left as it is


class Sized(Protocol):
    """A file of which the size is known."""

    @property
    def num_bytes(self) -> int:
        """Its size."""
        ...


File = TypeVar("File", bound=Sized)


def is_small(file: Sized, target_bytes: int) -> bool:
    """Whether a file may be joined, if others are like it."""
    return file.num_bytes < _SMALL * target_bytes


def cut(files: Iterable[File], target_bytes: int) -> list[list[File]]:
    """Lists of two or more small files, in their order, each of at most the target together.

    Each makes files fewer, so that it comes to an end however often it is asked.
    """
    lists: list[list[File]] = []
    length = 0
    for file in files:
        if not lists or length + file.num_bytes > target_bytes:
            lists.append([])
            length = 0
        lists[-1].append(file)
        length += file.num_bytes
    return [each for each in lists if len(each) > 1]
