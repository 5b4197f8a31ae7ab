"""The kinds of table that the variants fill: how one is created, and which files hold its rows.

The files are those that the table's own log names, so what was written but not committed is in
no count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.order_table import PRICED
from sinks.storage import Storage

if TYPE_CHECKING:
    from benchmarks.place import Place

_ICEBERG_PROPERTIES = "'write.parquet.compression-codec' = 'snappy'"  # as Spark's Parquet has it


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of table. A table is in a folder that nobody else uses.

    `create` makes one, with no rows, in a session with the jars; `start` starts a query of
    Structured Streaming that writes into it; `files` are those with the rows.
    """

    jars: tuple[str, ...]
    create: Callable[[Any, str], None]
    start: Callable[[Any, str], Any]
    files: Callable[["Place"], list[str]]


def _columns() -> str:
    from sinks.spark.existing import spark_schema  # noqa: PLC0415 - see sinks/__init__

    fields = spark_schema(PRICED).fields
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)


def _create_delta(session: Any, uri: str) -> None:
    session.sql(f"CREATE TABLE delta.`{uri}` ({_columns()}) USING delta")


def delta_files(storage: Storage, uri: str) -> list[str]:
    """Those that the log has added and not removed."""
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra

    options = storage.object_store_options(uri)
    return DeltaTable(uri, storage_options=options).file_uris()


def _iceberg_table(uri: str) -> str:
    """The table's name in a catalogue of its folder, which is made where it is not known yet."""
    folder, _, name = uri.rpartition("/")
    return f"{folder.rpartition('/')[2].replace('-', '_')}.`{name}`"


def _create_iceberg(session: Any, uri: str) -> None:
    table = _iceberg_table(uri)
    catalogue = f"spark.sql.catalog.{table.partition('.')[0]}"
    session.conf.set(catalogue, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{catalogue}.type", "hadoop")
    session.conf.set(f"{catalogue}.warehouse", uri.rpartition("/")[0])
    session.conf.set(f"{catalogue}.cache-enabled", "false")  # others commit, too
    session.sql(
        f"CREATE TABLE {table} ({_columns()}) USING iceberg TBLPROPERTIES ({_ICEBERG_PROPERTIES})"
    )


def _iceberg_files(there: "Place") -> list[str]:
    def read(session: Any) -> list[str]:
        files = session.table(f"{_iceberg_table(there.uri)}.files").select("file_path").collect()
        return [row.file_path for row in files]

    return there.spark.run(read, group="files")


def _catalogued_files(there: "Place") -> list[str]:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra

    given = {**there.storage.catalog_properties(), **there.storage.catalogs["default"]}
    table = load_catalog("default", **given).load_table(("default", there.uri.rpartition("/")[2]))
    return [each.file.file_path for each in table.scan().plan_files()]


DELTA = Kind(
    jars=("delta",),
    create=_create_delta,
    start=lambda writer, uri: writer.format("delta").start(uri),
    files=lambda there: delta_files(there.storage, there.uri),
)
ICEBERG = Kind(
    jars=("iceberg",),
    create=_create_iceberg,
    start=lambda writer, uri: writer.format("iceberg").toTable(_iceberg_table(uri)),
    files=_iceberg_files,
)
CATALOGUED = Kind(  # ours makes it
    jars=(),
    create=lambda _session, _uri: None,
    start=lambda _writer, _uri: None,
    files=_catalogued_files,
)
