"""Staging for tables that are files in their own place: in this process, or in another."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sinks.columns import Fitted, fit
from sinks.files.bad_rows import write_good_rows
from sinks.files.data_file import DataFile, DataFileWriter
from topology.errors import SinkFailed
from topology.sink import Piece
from topology.transactional import Group, Share, Staged


@dataclass(frozen=True, slots=True)
class FileStager:
    """Writes the rows of groups to files that no log names. A Stager.

    The parts of what it stages are the files.
    """

    files: DataFileWriter
    schema: pa.Schema  # of the rows

    def stage(self, group: Group) -> Staged:
        """Write the rows that fit; the others are named. Raises OSError; then no file is left."""
        files, fitted = self.put(group.pieces, group.number)
        return Staged(group.shares, fitted.table.num_rows, tuple(files), fitted.rejected)

    def put(self, pieces: Sequence[Piece], number: int) -> tuple[list[DataFile], Fitted]:
        """Write the rows that fit, and say which; `number` is part of the files' names.

        Raises as `stage`.
        """
        fitted = fit(pieces, self.schema)
        fitted = fitted.without(self.files.layout.misfits(fitted.table, self.schema))
        return write_good_rows(
            fitted, lambda rows: self.files.write(rows, number), self.files.remove
        )

    def discard(self, staged: Staged) -> None:
        """Remove the files."""
        self.files.remove(staged.parts)


def check_shared(root: Path, files: Iterable[DataFile]) -> None:
    """See that what other processes wrote below a table's folder is in that of this process, too.

    Raises SinkFailed for a file that is not there, or not as large as it was written: a log that
    named it would lack its rows. Raises OSError where the folder cannot be looked into.
    """
    for file in files:
        path = root / file.path
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            wrong = "is not there"
        else:
            if found == file.num_bytes:
                continue
            wrong = f"has {found} bytes here, not {file.num_bytes}"
        raise SinkFailed(
            f"file {path}, which an executor wrote, {wrong}: executors and driver must share the "
            "folder of the table"
        )


def joined(shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
    """Put together what was staged of one group's rows, in their order.

    The parts are all their parts; a rejected row's place is the one that it has in the group.
    """
    rejected: dict[int, str] = {}
    start = 0
    for each in staged:
        rejected |= {start + row: reason for row, reason in each.rejected.items()}
        start += each.num_rows + len(each.rejected)
    parts = tuple(part for each in staged for part in each.parts)
    return Staged(shares, start - len(rejected), parts, rejected)
