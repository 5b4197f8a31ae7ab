"""An Iceberg table with its sinks, and what pyiceberg and Spark see of it."""

import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as Theirs

from examples.support.postgres_server import EmbeddedPostgres
from sinks import IcebergSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.support.batches import LINE, SCHEMA, rows
from tests.support.delta_table import race
from tests.support.spark import stream
from topology.sink import Fence, SinkContext

EXPIRE_AT_ONCE = {
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": "1",
}


class Table:
    """One table, its sinks, and others' view of it.

    `catalog` has the properties of a catalogue "lake"; without them it is the default one.
    """

    committer = (SqlCatalog, "commit_table")
    refusal = CommitFailedException("answered twice")

    def __init__(
        self, warehouse: Path | str, catalog: Mapping[str, str] | None = None, name: str = "orders"
    ) -> None:
        self.name = name
        self.racing, self.racing_more = racing, (name,)
        self.storage = Storage(
            str(warehouse), catalogs={} if catalog is None else {"lake": catalog}
        )
        self.called = "default" if catalog is None else "lake"  # which stands in the database, too
        self.catalog = load_catalog(
            self.called,
            **(
                catalog
                or {
                    "type": "sql",
                    "uri": f"sqlite:///{warehouse}/iceberg.db",
                    "warehouse": f"file://{warehouse}",
                }
            ),
        )
        self.sinks: list[IcebergSink[Any]] = []

    def sink(
        self,
        schema: pa.Schema = SCHEMA,
        *,
        exactly_once: bool = True,
        spark: Any = None,
        **options: Any,
    ) -> IcebergSink[Any]:
        self.sinks.append(IcebergSink(self.name, schema=schema, catalog=self.called, **options))
        context = SinkContext("p", "s", {}, self.storage, spark, exactly_once=exactly_once)
        self.sinks[-1].open(context)
        return self.sinks[-1]

    def fenced(self, *lines: str, epoch: int = 1, **options: Any) -> IcebergSink[Any]:
        sink = self.sink(**options)
        sink.fence([Fence(line, epoch) for line in lines or (LINE,)])
        return sink

    def theirs(self) -> Theirs:
        return self.catalog.load_table(("default", self.name))

    def rows(self, where: str = "true") -> list[dict[str, Any]]:
        return self.theirs().scan(where).to_arrow().to_pylist()

    def numbers(self, where: str = "true") -> list[int]:
        return sorted(row["number"] for row in self.rows(where))

    def append(self, *numbers: int) -> None:
        theirs = pa.Table.from_pylist(rows(*numbers, place="theirs"))
        self.theirs().append(theirs.cast(self.theirs().schema().as_arrow()))

    def drop(self) -> None:
        self.catalog.drop_table(("default", self.name))

    def folder(self) -> Path:
        return Path(self.theirs().location().removeprefix("file://"))

    def files(self) -> set[Path]:
        return set((self.folder() / "data").rglob("*.parquet"))

    def set_properties(self, given: Mapping[str, str]) -> None:
        with self.theirs().transaction() as change:
            change.set_properties(dict(given))
        time.sleep(0.002)  # snapshots are older than a millisecond

    def on_disk(self) -> set[str]:
        """All files but the metadata files, of which the catalogue names some."""
        found = (path for path in self.folder().rglob("*") if path.is_file())
        return {f"file://{path}" for path in found if path.suffix != ".json"}

    def named(self) -> set[str]:
        """The files that some snapshot names. Raises FileNotFoundError for a dangling name."""
        theirs = self.theirs()
        found: set[str] = set()
        for snapshot in theirs.metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(theirs.io):
                found.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(theirs.io)
                found |= {entry.data_file.file_path for entry in entries}
        return found

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        self.catalog.close()


class SparkTable(Table):
    """A table of a catalogue in PostgreSQL, which Spark writes too."""

    def __init__(self, warehouse: Path, spark: SparkDriver, server: EmbeddedPostgres) -> None:
        self._conf = {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "jdbc",
            "spark.sql.catalog.lake.uri": f"jdbc:{server.url}",
            "spark.sql.catalog.lake.jdbc.user": server.user,
            "spark.sql.catalog.lake.jdbc.password": server.password,
            "spark.sql.catalog.lake.jdbc.schema-version": "V1",
            "spark.sql.catalog.lake.warehouse": f"file://{warehouse}",
        }
        self.spark = spark
        super().__init__(warehouse, in_postgres(server, warehouse), f"orders_{uuid.uuid4().hex}")

    def sql(self, *statements: str) -> None:
        """Have Spark run statements in which OURS is the table."""
        for each in statements:
            statement = each.replace("OURS", self._full_name)
            self._run(lambda session, statement=statement: session.sql(statement).collect())

    def read(self, where: str = "true") -> pa.Table:
        return self._run(lambda session: session.table(self._full_name).where(where).toArrow())

    def stream(self, folder: Path) -> None:
        def job(session: Any) -> None:
            stream(session.readStream.format("iceberg").load(self._full_name), folder)

        self._run(job)

    def _run(self, job: Callable[[Any], Any]) -> Any:
        def run(session: Any) -> Any:
            for name, value in self._conf.items():
                session.conf.set(name, value)
            session.catalog.clearCache()
            found = job(session)
            session.sql(f"REFRESH TABLE {self._full_name}")
            return found

        return self.spark.run(run, group="iceberg")

    @property
    def _full_name(self) -> str:
        return f"lake.default.{self.name}"


def in_postgres(server: EmbeddedPostgres, warehouse: Path) -> dict[str, str]:
    user = f"{server.user}:{server.password}"
    return {
        "type": "sql",
        "uri": f"postgresql+psycopg://{user}@{server.address}/postgres",
        "warehouse": f"file://{warehouse}",
    }


def racing(storage: Storage, line: str, number: int, last: int, name: str = "orders") -> None:
    catalog = [*storage.catalogs, "default"][0]
    race(IcebergSink(name, schema=SCHEMA, catalog=catalog), storage, line, number, last)
