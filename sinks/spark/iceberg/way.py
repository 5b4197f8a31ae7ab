"""How an Iceberg table is written, by what it is like."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from sinks.columns import Fitted, fit
from sinks.files.bad_rows import write_good_rows
from sinks.files.data_file import DataFile, DataFileWriter
from sinks.paths import local_path
from sinks.spark.iceberg.facts import Facts, new_columns, obstacles
from sinks.spark.iceberg.layout import IcebergLayout
from sinks.spark.iceberg.schema import tied
from topology.errors import SinkFailed
from topology.sink import Piece
from topology.transactional import Group, Staged


class ColumnsMissing(Exception):
    """The table lacks columns that it is to get first."""

    def __init__(self, columns: pa.Schema) -> None:
        super().__init__(", ".join(columns.names))
        self.columns = columns


class Way(NamedTuple):
    """How the table, as it was examined last, is written. A Stager."""

    facts: Facts
    rows: pa.Schema
    schema: pa.Schema  # the same, with the table's ids for the columns
    files: DataFileWriter

    def is_as(self, other: "Way") -> bool:
        """Whether files that were written the one way can be added the other way."""
        return (
            self.facts.table_id == other.facts.table_id
            and self.facts.spec == other.facts.spec
            and self.facts.data == other.facts.data
            and self.schema.equals(other.schema, check_metadata=True)
        )

    def stage(self, group: Group) -> Staged:
        """Write the rows that fit to files; the only part is a Written. Raises OSError."""
        files, fitted = self.put(group.pieces, group.number)
        written = Written(self, files)
        return Staged(group.shares, fitted.table.num_rows, (written,), fitted.rejected)

    def put(self, pieces: Sequence[Piece], number: int) -> tuple[list[DataFile], Fitted]:
        """Write the rows that fit, and say which; they get the table's ids. Raises OSError."""

        def write(rows: pa.Table) -> list[DataFile]:
            return self.files.write(pa.Table.from_arrays(rows.columns, schema=self.schema), number)

        return write_good_rows(fit(pieces, self.rows), write, self.files.remove)

    def discard(self, staged: Staged) -> None:
        """Remove the files."""
        for written in staged.parts:
            self.files.remove(written.files)


class Written(NamedTuple):
    """Rows in files that no reader sees yet, and how they were written."""

    way: Way
    files: list[DataFile]


def way_to(facts: Facts, schema: pa.Schema, partition_by: Sequence[str], *, adds: bool) -> Way:
    """How rows of a schema are written.

    Raises SinkFailed, with all that keeps them out, and with `adds` ColumnsMissing when only
    columns are missing.
    """
    wrong = obstacles(facts, schema, partition_by, adds=adds)
    folder = local_path(facts.data)
    if folder is None:
        wrong.append(f"its files go to {facts.data}; allowed is a local file system")
    if wrong or folder is None:
        raise SinkFailed("; ".join(wrong))
    missing = new_columns(facts, schema)
    if missing.names:
        raise ColumnsMissing(missing)
    types = {name: str(field["type"]) for name, field in facts.fields.items()}
    layout = IcebergLayout(facts.partition_by, types)
    return Way(facts, schema, tied(schema, facts.fields), DataFileWriter(folder, layout))
