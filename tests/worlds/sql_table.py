"""A PostgreSQL table with its sinks, and what the database itself says of it."""

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

from service.embedded.postgres import EmbeddedPostgres
from sinks import SqlSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from topology.sink import Batch, SinkContext
from topology.transactional import Group, Share

LINE = "orders[0]"
SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})


class SqlTable:
    """One table in a schema of its own, and its sinks."""

    def __init__(
        self, warehouse: Path, server: EmbeddedPostgres, spark: SparkDriver, name: str = "orders"
    ) -> None:
        self.warehouse, self.server, self.spark = warehouse, server, spark
        self.schema = f"t_{uuid.uuid4().hex[:12]}"
        self.name = f"{self.schema}.{name}"
        self.quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (self.schema, name))
        self.sinks: list[SqlSink[Any]] = []
        self.sql("CREATE SCHEMA %S")

    def made(self, schema: pa.Schema = SCHEMA, **options: Any) -> SqlSink[Any]:
        """A sink that is not open."""
        return SqlSink(
            self.server.url,
            self.name,
            schema=schema,
            user=self.server.user,
            password=self.server.password,
            **options,
        )

    def sink(
        self, schema: pa.Schema = SCHEMA, *, exactly_once: bool = False, **options: Any
    ) -> SqlSink[Any]:
        self.sinks.append(self.made(schema, **options))
        self.sinks[-1].open(self.context(exactly_once=exactly_once))
        return self.sinks[-1]

    def context(self, *, exactly_once: bool = False) -> SinkContext:
        return SinkContext(
            "pipeline",
            "sink",
            {},
            Storage(str(self.warehouse)),
            self.spark,
            exactly_once=exactly_once,
        )

    def sql(self, *statements: str) -> Any:
        """Run statements over a connection of their own; the first cell of the last one's rows.

        %T is the table, %O another one beside it, %S their schema.
        """

        def run(session: Any) -> Any:
            connection = self.connect(session)
            found = None
            try:
                for each in statements:
                    statement = connection.createStatement()
                    if statement.execute(self._filled(each)):
                        rows = statement.getResultSet()
                        found = rows.getString(1) if rows.next() else None
            finally:
                connection.close()
            return found

        return self.spark.run(run, group="sql")

    def _filled(self, sql: str) -> str:
        other = self.quoted.removesuffix('"') + '_other"'
        return sql.replace("%T", self.quoted).replace("%O", other).replace("%S", self.schema)

    def connect(self, session: Any) -> Any:
        properties = session._jvm.java.util.Properties()
        properties.setProperty("user", self.server.user)
        properties.setProperty("password", self.server.password)
        return session._jvm.org.postgresql.Driver().connect(self.server.url, properties)

    def rows(self, order: str = "1", name: str = "%T") -> list[dict[str, Any]]:
        """The table as the database turns it into JSON."""
        text = self.sql(
            f"SELECT json_agg(r)::text FROM (SELECT * FROM {name} ORDER BY {order}) AS r"  # noqa: S608
        )
        found: list[dict[str, Any]] = json.loads(text or "[]")
        return found

    def numbers(self) -> list[int]:
        return [row["number"] for row in self.rows()]

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def rows(*numbers: int, place: str | None = "x") -> list[dict[str, Any]]:
    return [{"number": number, "place": place} for number in numbers]


def write(sink: SqlSink[Any], given: list[dict[str, Any]], sequence: int = 1) -> None:
    sink.write(Batch(sequence, [given], len(given)))


def group(txid: int, *numbers: int, epoch: int = 1, attempt: int = 1, line: str = LINE) -> Group:
    share = Share(line, epoch, txid, attempt, txid, txid + 1, "0" * 32, len(numbers))
    return Group(txid, (share,), [rows(*numbers)], len(numbers))
