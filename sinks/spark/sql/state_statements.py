"""The statements that read a table of a state's values. Pure; see postgres.py."""

# ruff: noqa: S608 - every name is quoted, and values come by COPY
from collections.abc import Sequence

import pyarrow as pa

from sinks.spark.sql.copied import select_list
from sinks.spark.sql.names import quoted


class StateStatements:
    """How the rows of some keys are read, and all of them, from a table that is known."""

    def __init__(self, table: str, schema: pa.Schema, key: Sequence[str]) -> None:
        """`table` is its whole name, quoted; `schema` are its columns, `key` those of a key."""
        self._table = table
        self._schema = schema
        # In the temporary table columns have names of ours: one more cannot meet a user's.
        self._ours = {name: f'"c{number}"' for number, name in enumerate(key)}

    @property
    def lock(self) -> str:
        """Keep others who change a state by the same statement away, until the transaction ends."""
        return f"LOCK TABLE {self._table} IN SHARE ROW EXCLUSIVE MODE"

    @property
    def make_keys(self) -> str:
        """Make the table of the keys that are asked for; it ends with the transaction."""
        columns = ", ".join(f"t.{quoted(name)} AS {ours}" for name, ours in self._ours.items())
        return (
            'CREATE TEMPORARY TABLE "headrace_keys" ON COMMIT DROP AS '
            f"SELECT {columns} FROM {self._table} AS t WITH NO DATA"
        )

    @property
    def copy_keys(self) -> str:
        """Send the keys there."""
        return f'COPY pg_temp."headrace_keys" ({", ".join(self._ours.values())}) FROM STDIN'

    @property
    def rows_of_keys(self) -> str:
        """Write the rows of these keys, each once, as `copied.read_copied` reads them."""
        same = " AND ".join(f"t.{quoted(name)} = k.{ours}" for name, ours in self._ours.items())
        return self._copy(
            f"SELECT {select_list(self._schema, 't')} FROM {self._table} AS t "
            f'WHERE EXISTS (SELECT FROM pg_temp."headrace_keys" AS k WHERE {same})'
        )

    @property
    def every_row(self) -> str:
        """Write all rows, likewise."""
        return self._copy(f"SELECT {select_list(self._schema, 't')} FROM {self._table} AS t")

    @staticmethod
    def _copy(query: str) -> str:
        return f"COPY ({query}) TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')"
