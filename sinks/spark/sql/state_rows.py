"""The rows of a state on their way out of its table and back, within a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from sinks.spark.spool import Spool
from sinks.spark.sql.connection import Connection
from sinks.spark.sql.copied import read_copied, unreadable
from sinks.spark.sql.copy_text import encode
from sinks.spark.sql.load import Load
from sinks.spark.sql.postgres import Statements
from sinks.spark.sql.sending import Sending
from sinks.spark.sql.state_statements import StateStatements
from topology.errors import SinkFailed


class StateRows:
    """Reads and writes the rows of one state's table by files of the spool.

    In three steps: `stored` reads, `bring` sends, and both hold up nobody; `merge` then changes
    the rows that are there.
    """

    def __init__(
        self, connection: Connection, statements: Statements, schema: pa.Schema, spool: Spool
    ) -> None:
        """`statements` are by key; `schema` are the table's columns, as they are sent and read."""
        self._connection = connection
        self._sending = Sending(connection, statements, by_key=True, one_by_one=False)
        self._table = statements.table
        self._schema = schema
        self._spool = spool

    def lock(self) -> None:
        """Keep others who do this away until the transaction ends. Raises DatabaseError."""
        self._connection.execute(StateStatements(self._table, self._schema, ()).lock)

    def stored(self, keys: pa.Table) -> pa.Table:
        """The rows of these keys. Raises DatabaseError, OSError, SinkFailed for a foreign value."""
        statements = StateStatements(self._table, self._schema, keys.column_names)
        self._connection.execute(statements.make_keys)
        with self._load(keys) as load:
            self._connection.copy(statements.copy_keys, load.file())
        return self._saved(statements.rows_of_keys)

    def every(self) -> pa.Table:
        """All rows. Raises as `stored`."""
        return self._saved(StateStatements(self._table, self._schema, ()).every_row)

    def bring(self, rows: pa.Table) -> None:
        """Send rows.

        Raises SinkFailed for one that the database cannot hold, DatabaseError, OSError.
        """
        with self._load(rows, numbered=True) as load:
            self._sending.bring(load.file())

    def merge(self) -> None:
        """Put what was brought in the place of what has the same keys. Raises DatabaseError."""
        self._sending.merge()

    def _saved(self, sql: str) -> pa.Table:
        with self._file("csv") as path:
            self._connection.save(sql, path)
            try:
                return read_copied(path, self._schema)
            except pa.ArrowInvalid as error:  # it would be the same again
                said = unreadable(error, self._schema)
                raise SinkFailed(f"table {self._table}: {said}") from error

    @contextmanager
    def _load(self, rows: pa.Table, *, numbered: bool = False) -> Iterator[Load]:
        encoded = encode(rows, numbered=numbered)
        if encoded.rejected:
            raise SinkFailed(f"table {self._table}: {next(iter(encoded.rejected.values()))}")
        load = Load(encoded.lines, self._spool, uuid4().hex)
        try:
            yield load
        finally:
            load.remove()

    @contextmanager
    def _file(self, suffix: str) -> Iterator[Path]:
        path = self._spool.place(f"{uuid4().hex}.{suffix}")
        try:
            yield path
        finally:
            self._spool.remove([path])
