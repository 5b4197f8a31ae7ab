"""Where a sink under test lives, by kind, and how to read what it wrote by other means."""

import sqlite3
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import NoSuchTableError

from examples.own_sink.sink import SqliteOrders
from sinks import DeltaSink, IcebergSink, KafkaTopicSink, MemorySink, PostgresSink, SparkSink
from sinks.storage import Storage
from tests.acceptance import evidence, table_files
from tests.support.committed_messages import committed_values
from tests.support.fake_spark import FakeSpark
from tests.support.iceberg_table import Table, in_postgres
from tests.support.postgres_table import PostgresTable
from tests.support.remote_staging import StagedApart
from topology.sink import Sink, SinkContext

Rows = list[dict[str, Any]]
INTEGRATION = pytest.mark.integration
NIGHTLY = [pytest.mark.integration, pytest.mark.nightly]


@dataclass(frozen=True)
class House:
    """`sink(**options)` is a new sink on the same place: another process's, as it were."""

    kind: str
    context: SinkContext
    sink: Callable[..., Sink[Any]]
    rows: Callable[[], Rows]

    @property
    def warehouse(self) -> Path:
        return Path(self.context.storage.warehouse)

    def numbers(self) -> list[int]:
        return sorted(row["number"] for row in self.rows())


def build(kind: str, schema: Any, request: pytest.FixtureRequest, *, exactly_once: bool) -> House:
    """A house of a sink for rows of a schema; its options may name another one."""
    warehouse: Path = request.getfixturevalue("tmp_path")
    context = SinkContext(
        "pipeline", "sink", {}, Storage(str(warehouse)), None, exactly_once=exactly_once
    )
    return _BUILDERS[kind](kind, context, schema, request)


def _memory(kind: str, context: SinkContext, schema: Any, _: Any) -> House:
    memory: MemorySink[Any] = MemorySink(schema=schema)

    def sink(**options: Any) -> Sink[Any]:
        nonlocal memory
        if options:
            memory = MemorySink(**options)
        return memory  # it is the place itself

    return House(kind, context, sink, lambda: memory.rows)


def _own(kind: str, context: SinkContext, _schema: Any, _: Any) -> House:
    file = Path(context.storage.warehouse) / "orders.db"

    def rows() -> Rows:
        with sqlite3.connect(file) as database:
            found = database.execute("SELECT number, customer FROM orders").fetchall()
        return [{"number": number, "customer": customer} for number, customer in found]

    return House(kind, context, lambda: SqliteOrders(file), rows)


def _delta(kind: str, context: SinkContext, schema: Any, _: Any) -> House:
    """Read off the table's log and its files. `apart`: other processes write the files."""
    given: dict[str, Any] = {"schema": schema}
    if kind == "delta-keyed":
        given = {"schema": _keyed(schema), "key": ["number"], "deleted": "gone"}

    def sink(**options: Any) -> Sink[Any]:
        made: Sink[Any] = DeltaSink("orders", **given | options)
        return StagedApart(made) if kind == "delta-apart" else made

    table = Path(context.storage.warehouse) / "orders"
    return House(kind, context, sink, lambda: evidence.read_table(table).to_pylist())


def _spark(kind: str, context: SinkContext, schema: Any, request: pytest.FixtureRequest) -> House:
    """A table that Spark writes, or a fake, which shows what the sink does."""
    name, _, fake = kind.partition("-")
    driver: Any = (
        FakeSpark(request.getfixturevalue("monkeypatch"))
        if fake
        else request.getfixturevalue("spark")
    )
    form = name.removeprefix("spark_")
    table = Path(context.storage.warehouse) / "orders"

    def files(session: Any) -> list[str]:
        frame = session.read.format(form).load(f"file://{table}")
        return [str(file) for file in frame.inputFiles()]

    def rows() -> Rows:
        if form == "delta":
            return evidence.read_table(table).to_pylist()
        paths = [url2pathname(urlsplit(file).path) for file in driver.run(files, group="read")]
        return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]

    def sink(**options: Any) -> Sink[Any]:
        return SparkSink("orders", format=form, **{"schema": schema} | options)

    return House(kind, replace(context, spark=driver), sink, rows)


def _iceberg(kind: str, context: SinkContext, schema: Any, _: Any) -> House:
    def sink(**options: Any) -> Sink[Any]:
        return IcebergSink("orders", **{"schema": schema} | options)

    table = Path(context.storage.warehouse) / "orders"
    return House(kind, context, sink, lambda: table_files.of_iceberg(table).to_pylist())


def _catalogued(
    kind: str, context: SinkContext, schema: Any, request: pytest.FixtureRequest
) -> House:
    warehouse: Path | str = context.storage.warehouse
    if kind == "iceberg-postgres":
        catalog: Mapping[str, str] = in_postgres(request.getfixturevalue("postgres"), warehouse)
    else:
        bucket = f"tables-{uuid.uuid4().hex[:8]}"
        warehouse, catalog = f"s3://{bucket}", request.getfixturevalue("seaweed").catalogue(bucket)
    table = Table(warehouse, catalog, f"orders_{uuid.uuid4().hex}")
    request.addfinalizer(table.close)

    def rows() -> Rows:
        try:
            return table.rows()
        except NoSuchTableError:
            return []

    return House(
        kind,
        replace(context, storage=table.storage),
        lambda: IcebergSink(table.name, schema=schema, catalog="lake"),
        rows,
    )


def _postgres(
    kind: str, context: SinkContext, schema: Any, request: pytest.FixtureRequest
) -> House:
    table = PostgresTable(request.getfixturevalue("postgres"))
    given: dict[str, Any] = {"schema": schema}
    if kind == "postgres-keyed":
        given = {"schema": _keyed(schema), "key": "number", "deleted": "gone"}

    def sink(**options: Any) -> PostgresSink[Any]:
        return table.made(**given | options)

    return House(kind, table.context(exactly_once=context.exactly_once), sink, table.rows)


def _topic(kind: str, context: SinkContext, _schema: Any, request: pytest.FixtureRequest) -> House:
    """A topic of two partitions; rows are what a consumer of committed messages gets."""
    kafka, topic = request.getfixturevalue("kafka"), request.getfixturevalue("topic")(2)
    context = replace(context, kafka={"bootstrap.servers": kafka.address, "linger.ms": 0})
    return House(
        kind,
        context,
        lambda: KafkaTopicSink(topic, value=_as_json),
        lambda: [msgspec.json.decode(value) for value in committed_values(context, topic)],
    )


def _as_json(row: dict[str, Any]) -> bytes:
    if type(row.get("number")) is not int:
        raise TypeError("'number' is no int")
    return msgspec.json.encode(row)


def _keyed(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, ("gone", pa.bool_())])


_BUILDERS: Mapping[str, Callable[..., House]] = {
    "memory": _memory,
    "own": _own,
    **dict.fromkeys(["delta", "delta-keyed", "delta-apart"], _delta),
    **dict.fromkeys(
        ["spark_parquet", "spark_delta", "spark_parquet-fake", "spark_delta-fake"], _spark
    ),
    "iceberg": _iceberg,
    **dict.fromkeys(["iceberg-postgres", "iceberg-rest"], _catalogued),
    **dict.fromkeys(["postgres", "postgres-keyed"], _postgres),
    "topic": _topic,
}
