"""Rows on their way to the database, and the file that brings them to Spark's JVM."""

from collections.abc import Collection
from pathlib import Path

from sinks.spark.spool import Spool
from sinks.spark.sql.copy_text import CopyText


class Load:
    """Rows to be sent, in a file of the spool that may be lost and is then written again."""

    def __init__(
        self,
        lines: CopyText,
        spool: Spool,
        name: str,
        *,
        longest_indexed: int = 0,
        one_by_one: bool = False,
    ) -> None:
        """`name` is that of the file, and of nothing else in the spool."""
        self.lines = lines
        self.longest_indexed = longest_indexed
        """How many bytes a row may have in columns that have an index."""
        self.one_by_one = one_by_one
        """Whether the table takes the rows only in their order, or that is not known."""
        self._spool = spool
        self._name = name

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return self.lines.num_rows

    def file(self) -> Path:
        """The file with all rows. Raises OSError."""
        path = self._spool.place(f"{self._name}.copy")
        if not path.exists():
            whole = path.with_suffix(".part")
            self.lines.write(whole)
            whole.replace(path)
        return path

    def without(self, places: Collection[int], name: str) -> "Load":
        """The other rows, under another name, to be put in place one by one."""
        return Load(self.lines.without(places), self._spool, name, one_by_one=True)

    def remove(self) -> None:
        """Remove the file; `file` would write it again."""
        self._spool.remove([self._spool.place(f"{self._name}.copy")])
