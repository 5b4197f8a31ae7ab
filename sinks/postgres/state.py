"""State in a PostgreSQL table: values and txids in one transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sinks.keyed_rows import KeyedRows
from sinks.postgres.catalogue import TableInfo, key_of, quoted, sql_type
from sinks.postgres.database import Connection, Database
from sinks.postgres.text import Lines, encode, is_text
from sinks.state.store import Change, StateStore
from topology.errors import InvalidSchema, SinkFailed
from topology.sink import Committed, Fence, Share, Sink, SinkContext
from topology.state import LINE, Shape, State

_LONGEST_KEY_BYTES = 2_000  # its index takes up to about 2,700, the line's name included
_FETCHED_ROWS = 2_000
_UNITS = ("s", "ms", "us")
_EXPECTED = (
    "expected text, booleans, whole numbers, decimals of up to 38 digits, dates, timestamps of "
    "up to microseconds, and, but for a key, floats"
)


class PostgresState(StateStore):
    """Keep a state in a PostgreSQL table.

    A missing table is created, with the key and the line as its primary key. Others may read it,
    and add columns with a default. A table with constraints, triggers or other unique indexes is
    refused, and so are types whose values would change (bytes, lists, structs, nanoseconds), and
    a float as a key.
    """

    def __init__(
        self, conninfo: str, table: str, *, user: str | None = None, password: str | None = None
    ) -> None:
        """Store only; see PostgresSink. Raises InvalidTopology, InvalidSchema for the name."""
        self.table = table
        self._database = Database("PostgresState", conninfo, table, user=user, password=password)
        self._key: tuple[str, ...] = ()

    def sink(self, state: State) -> Sink[Any]:
        self._suited(state.shape)
        return super().sink(state)

    def open(self, context: SinkContext, shape: Shape) -> None:
        rows = self._suited(shape)
        self._key = rows.key
        self._database.open(context, rows)
        if (reason := self._database.examined.trial_reason(rows)) is not None:
            raise SinkFailed(f"{self._database.where}: {reason}; a state has a table of its own")

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        return self._database.fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self._database.committed(lines)

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        """Change rows and set the txids in one transaction; see the contract.

        The lines are locked last, so a slow or frozen process blocks nobody. If the lines are
        unchanged then, so are the rows that were read: every writer moves its line. The whole
        table is locked where that does not hold: without shares, or if rows belong to no line.
        """

        def rows(connection: Connection) -> Lines:
            if not shares or LINE not in keys.column_names:
                table = self._database.statements.table
                connection.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
            made = change(self._stored(connection, keys)) if keys.num_rows else keys
            lines, unfit = encode(made)
            if unfit:
                raise SinkFailed(f"table '{self.table}': {next(iter(unfit.values()))}")
            return lines

        self._database.commit(shares, rows)

    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        rows = self._suited(shape)

        def read(connection: Connection, info: TableInfo | None) -> pa.Table:
            if info is None:
                return shape.schema.empty_table()
            if wrong := list(info.problems(rows, may_grow=False)):
                raise SinkFailed(f"{self._database.where}: {'; '.join(wrong)}")
            return self._read(connection, quoted(info.schema, info.name), rows.schema)

        return self._database.read(context, read)

    def refused(self, rows: pa.Table) -> Mapping[int, str]:
        """Reject texts and times that PostgreSQL cannot hold, and keys that are too long."""
        lengths = np.zeros(rows.num_rows, np.int64)
        for name in self._key:
            if name in rows.column_names and is_text(rows[name].type):
                lengths += pc.binary_length(rows[name]).to_numpy()
        too_long = {
            index: f"found a key of {length} bytes, expected at most {_LONGEST_KEY_BYTES}"
            for index, length in enumerate(lengths.tolist())
            if length > _LONGEST_KEY_BYTES
        }
        return encode(rows)[1] | too_long

    def close(self) -> None:
        self._database.close()

    def _suited(self, shape: Shape) -> KeyedRows:
        """Raises InvalidSchema for a type that the table cannot hold."""
        rows = key_of(self.table, shape.schema, shape.row_key)
        for field in rows.schema:
            is_key = field.name in rows.key
            if not is_exact(field.type) or (is_key and kinds.is_floating(field.type)):
                what = f"{'key' if is_key else 'value'} '{field.name}' is {field.type}"
                where = f"state '{shape.state}' in table '{self.table}'"
                raise InvalidSchema(f"{where}: {what}; {_EXPECTED}")
        return rows

    def _stored(self, connection: Connection, keys: pa.Table) -> pa.Table:
        statements, names = self._database.statements, keys.column_names
        arrays = ", ".join(
            f"${number}::{statements.casts[name]}[]" for number, name in enumerate(names, 1)
        )
        ours = [f"c{number}" for number in range(len(names))]
        same = " AND ".join(
            f"t.{quoted(name)} = k.{our}" for name, our in zip(names, ours, strict=True)
        )
        given = f" JOIN unnest({arrays}) AS k({', '.join(ours)}) ON {same}"  # each is there once
        values = [column.to_pylist() for column in keys.columns]
        schema = self._database.rows.schema
        return self._read(connection, statements.table, schema, given, values)

    def _read(
        self,
        connection: Connection,
        table: str,
        schema: pa.Schema,
        given: str = "",
        values: Sequence[Any] = (),
    ) -> pa.Table:
        """Read the rows of a table; a join with `given` may select some.

        Values are cast to the type of a column of ours, since an existing one may be wider; times
        with a zone to UTC, whatever zone the session has.
        """
        columns = ", ".join(f"t.{quoted(field.name)}{_as_ours(field.type)}" for field in schema)
        query = f"SELECT {columns} FROM {table} AS t{given}"  # noqa: S608 - names are quoted
        tables = [schema.empty_table()]
        with connection.cursor("headrace", binary=True) as cursor:
            cursor.execute(query, values)
            try:
                while rows := cursor.fetchmany(_FETCHED_ROWS):
                    parts = zip(zip(*rows, strict=True), schema, strict=True)
                    arrays = [pa.array(part, field.type) for part, field in parts]
                    tables.append(pa.table(arrays, schema=schema))
            except (pa.ArrowInvalid, OverflowError) as error:  # a retry would read the same value
                message = f"table '{self.table}': a value cannot be read: {error}"
                raise SinkFailed(message) from error
        return pa.concat_tables(tables)


def is_exact(kind: pa.DataType) -> bool:
    """Whether PostgreSQL returns every value of a type unchanged."""
    if kinds.is_timestamp(kind):
        return str(kind.unit) in _UNITS
    if kinds.is_decimal128(kind):
        return bool(0 <= kind.scale <= kind.precision)
    if is_text(kind):
        return not kinds.is_string_view(kind)
    exact = (pa.bool_(), pa.float32(), pa.float64(), pa.date32())
    return kind in exact or kinds.is_integer(kind)


def _as_ours(kind: pa.DataType) -> str:
    if kinds.is_timestamp(kind) and kind.tz is not None:
        return " AT TIME ZONE 'UTC'"
    return f"::{sql_type(kind)}"
