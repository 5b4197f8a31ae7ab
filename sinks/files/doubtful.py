"""Files that may be part of a table although nobody was told so."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from sinks.files.data_file import DataFile


class Doubtful:
    """Remembers the files of commits that may have landed, so that these are not removed.

    The commit thread tells, the staging thread asks.
    """

    def __init__(self) -> None:
        self._paths: set[str] = set()

    @contextmanager
    def committing(
        self, files: Sequence[DataFile], refusals: type[Exception] | tuple[()] = ()
    ) -> Iterator[None]:
        """Commit files: they are in doubt if that raises, unless it is one of the refusals.

        Those say that nothing has landed, in this try or an earlier one.
        """
        paths = {file.path for file in files}
        self._paths |= paths
        try:
            yield
        except refusals:
            self._paths -= paths
            raise
        self._paths -= paths

    def settle(self, files: Sequence[DataFile], named: Collection[str]) -> None:
        """Learn that of these files only those that are named have landed, and no other will."""
        self._paths -= {file.path for file in files if file.path not in named}

    def without(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Those of some files that are surely no part of the table."""
        return [file for file in files if file.path not in self._paths]
