"""A table in its database: looked at, made where it is missing, and how it is written."""

from typing import NamedTuple

import pyarrow as pa

from sinks.spark.sql import facts as catalogue
from sinks.spark.sql.connection import Connection
from sinks.spark.sql.facts import Facts
from sinks.spark.sql.names import TableName
from sinks.spark.sql.postgres import (
    ENCODING,
    FACTS,
    LINES_TABLE,
    LOCK_CREATION,
    SCHEMA,
    Statements,
)
from sinks.spark.sql.wanted import Wanted
from topology.errors import SinkFailed


class Way(NamedTuple):
    """How the table, as it was examined last, is written."""

    statements: Statements
    required: frozenset[str]  # no null there
    indexed: list[str]
    trial_reason: str | None  # why rows have to be tried before they are staged


class Examiner:
    """The table that a sink writes to; used within transactions of a connection."""

    def __init__(
        self, name: TableName, wanted: Wanted, where: str, *, adds: bool, has_lines: bool
    ) -> None:
        """`where` names it in errors; with `adds` it gets new columns, with `has_lines` txids."""
        self._name = name
        self._wanted = wanted
        self._where = where
        self._adds = adds
        self._has_lines = has_lines

    def examine(self, connection: Connection, *, makes: bool) -> Way:
        """Look at the table; make what is missing of it if `makes`.

        Raises SinkFailed when it cannot be written, or is not there any more.
        """
        facts = self._facts(connection)
        lacks_lines = self._lacks_lines(connection, facts)
        if makes and (facts is None or lacks_lines or self._new_columns(facts)):
            facts = self._made(connection)
        elif lacks_lines or facts is None:
            gone = "it" if facts is None else LINES_TABLE
            raise SinkFailed(f"{self._where}: {gone} was removed while rows were written")
        if wrong := list(catalogue.complaints(facts, self._wanted)):
            raise SinkFailed(f"{self._where}: {'; '.join(wrong)}")
        encoding = connection.text(ENCODING)
        if encoding != "UTF8":
            raise SinkFailed(
                f"{self._where}: the database's encoding is {encoding}; needed is UTF8"
            )
        return Way(
            self._statements(facts.schema, facts.name, facts),
            catalogue.required(facts, self._wanted),
            catalogue.indexed_columns(facts, self._wanted),
            catalogue.trial_reason(facts, self._wanted),
        )

    def _made(self, connection: Connection) -> Facts:
        """The table, with what was missing: itself, new columns, the table of the lines."""
        connection.text(LOCK_CREATION)
        facts = self._facts(connection)  # someone may have been quicker
        if facts is None:
            schema = self._name.schema or connection.text(SCHEMA)
            if schema is None:
                raise SinkFailed(f"{self._where}: no schema of the search path exists; name one")
            statements = self._statements(schema, self._name.table)
            connection.execute(statements.create(self._wanted.schema))
        else:
            statements = self._statements(facts.schema, facts.name)
            if new := self._new_columns(facts):
                connection.execute(statements.add_columns(new))
        if self._has_lines:
            connection.execute(statements.create_lines)
        facts = self._facts(connection)
        if facts is None:
            raise SinkFailed(f"{self._where}: it is not in the search path, where it was made")
        return facts

    def _new_columns(self, facts: Facts) -> list["pa.Field[pa.DataType]"]:
        return catalogue.new_columns(facts, self._wanted) if self._adds else []

    def _facts(self, connection: Connection) -> Facts | None:
        text = connection.text(FACTS, self._name.quoted)
        return None if text is None else catalogue.facts_of(text)

    def _lacks_lines(self, connection: Connection, facts: Facts | None) -> bool:
        if not self._has_lines or facts is None:
            return False
        lines = TableName(facts.schema, LINES_TABLE).quoted
        return connection.text(FACTS, lines) is None

    def _statements(self, schema: str, table: str, facts: Facts | None = None) -> Statements:
        wanted = self._wanted
        casts = {column.name: column.cast for column in facts.columns} if facts else {}
        return Statements(schema, table, wanted.schema.names, wanted.key, wanted.deleted, casts)
