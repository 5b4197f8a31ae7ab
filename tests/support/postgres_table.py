"""A PostgreSQL table with its sinks, and what the database itself says of it."""

import uuid
from typing import Any

import psycopg
import pyarrow as pa

from examples.support.postgres_server import EmbeddedPostgres
from sinks import PostgresSink
from sinks.postgres.state import PostgresState
from sinks.storage import Storage
from tests.support.batches import SCHEMA
from topology.sink import SinkContext


class PostgresTable:
    def __init__(self, server: EmbeddedPostgres, name: str = "orders") -> None:
        self.server = server
        self.schema = f"t_{uuid.uuid4().hex[:12]}"
        self.name = f"{self.schema}.{name}"
        self.quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (self.schema, name))
        self.sinks: list[PostgresSink[Any]] = []
        self.sql("CREATE SCHEMA %S")

    def made(self, schema: pa.Schema = SCHEMA, **options: Any) -> PostgresSink[Any]:
        return PostgresSink(
            self.server.url,
            self.name,
            schema=schema,
            user=self.server.user,
            password=self.server.password,
            **options,
        )

    def sink(
        self, schema: pa.Schema = SCHEMA, *, exactly_once: bool = False, **options: Any
    ) -> PostgresSink[Any]:
        self.sinks.append(self.made(schema, **options))
        self.sinks[-1].open(self.context(exactly_once=exactly_once))
        return self.sinks[-1]

    def state(self) -> PostgresState:
        server = self.server
        return PostgresState(server.url, self.name, user=server.user, password=server.password)

    def context(self, *, exactly_once: bool = False) -> SinkContext:
        return SinkContext("pipeline", "sink", {}, Storage(""), None, exactly_once=exactly_once)

    def sql(self, *statements: str) -> Any:
        """Run statements over a connection of their own; the first cell of the last one's rows.

        %T is the table, %O another one beside it, %S their schema.
        """
        with connected(self.server) as connection:
            for each in statements:
                cursor = connection.execute(self._filled(each))
            row = cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]

    def _filled(self, sql: str) -> str:
        other = self.quoted.removesuffix('"') + '_other"'
        return sql.replace("%T", self.quoted).replace("%O", other).replace("%S", self.schema)

    def rows(self, order: str = "1", name: str = "%T") -> list[dict[str, Any]]:
        query = f"SELECT * FROM {name} ORDER BY {order}"  # noqa: S608
        return rows_of(self.server, self._filled(query))

    def numbers(self) -> list[int]:
        return [row["number"] for row in self.rows()]

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def connected(server: EmbeddedPostgres) -> psycopg.Connection[Any]:
    return psycopg.connect(server.url, user=server.user, password=server.password, autocommit=True)


def rows_of(server: EmbeddedPostgres, query: str) -> list[dict[str, Any]]:
    """The rows of a query, as the database turns them into JSON."""
    with connected(server) as connection:
        asked = f"SELECT coalesce(json_agg(r), '[]') FROM ({query}) AS r"  # noqa: S608
        row = connection.execute(asked).fetchone()
        return row[0]
