"""Reference tables, read into Arrow: by Spark only what nothing else reads as Spark does."""

from typing import Any

import pyarrow as pa

from sinks.probe import plain_message
from sinks.reference_files import (
    Csv,
    columns_of,
    files_at,
    json,
    parquet,
    read_columns,
    spark_schema,
)
from sinks.spark.tables import read_by_spark
from sinks.storage import Storage
from sinks.tables.iceberg import open_log
from topology.errors import ReferenceLoadFailed, SinkFailed
from topology.masking import mask, secrets_in
from topology.reference import Reference
from topology.sink import SparkDriver

_AS_TABLES = ("parquet", "json", "delta")  # that Spark reads without options


def needs_spark(reference: Reference, storage: Storage) -> bool:
    """Whether Spark has to read a table: it alone knows the format, a property, or the store."""
    if reference.format == "iceberg":
        return False
    if reference.format == "csv":
        is_plain = Csv.of(reference.properties) is not None
    else:
        is_plain = reference.format in _AS_TABLES and not reference.properties
    if not is_plain or not storage.reaches(reference.place):
        return True
    # delta-rs takes %41 for an A.
    return reference.format == "delta" and "%" in storage.uri(reference.place)


def read_reference(reference: Reference, storage: Storage, spark: SparkDriver | None) -> pa.Table:
    """Read a reference's rows, at most one more than it may have. Any thread may call.

    Columns have the types that Spark gives them, whoever reads. Raises ReferenceLoadFailed, naming
    the place and what is wrong with it.
    """
    mask.add(secrets_in(reference.properties))
    if needs_spark(reference, storage):
        if spark is None:  # whoever wires has asked the same question
            raise AssertionError
        return read_by_spark(reference, spark, storage.warehouse)
    try:
        read = {"delta": _delta, "iceberg": _iceberg}.get(reference.format, _files)
        return read(reference, storage)
    except ReferenceLoadFailed:
        raise
    except Exception as error:
        said = plain_message(error) or type(error).__name__
        if isinstance(error, ImportError):
            said = f"{said}; pip install 'headrace[{reference.format}]'"
        elif reference.format in _AS_TABLES and not isinstance(error, OSError | SinkFailed):
            said = f'{said}; Spark may read it: reference("{reference.format}.`…`")'
        reason = f"{reference.format} '{reference.place}': {said}"
        raise ReferenceLoadFailed(reference.name, reason) from error


def _files(reference: Reference, storage: Storage) -> pa.Table:
    files, limit = files_at(storage, reference.place), reference.max_rows + 1
    csv = Csv.of(reference.properties)
    if reference.format == "csv" and csv is not None:
        source = csv.source(files)
    else:
        source = (parquet if reference.format == "parquet" else json)(files, limit)
    wanted = _wanted(reference, columns_of(source, files))
    return read_columns(source, files, wanted, limit)


def _delta(reference: Reference, storage: Storage) -> pa.Table:
    """What delta-rs's own engine reads: `to_pyarrow_dataset` knows no renamed columns."""
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415 - see sinks/__init__

    uri = storage.uri(reference.place)
    table: Any = DeltaTable(uri, storage_options=storage.object_store_options(uri))
    wanted = _wanted(reference, pa.schema(table.schema()))
    for field in table.schema().fields:
        kind = str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
        if field.name in wanted.names and kind.startswith("char"):
            raise ValueError(f"column '{field.name}' is {kind}, which Spark pads")
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in wanted.names)
    query = f"SELECT {names} FROM reference LIMIT {reference.max_rows + 1}"  # noqa: S608 - quoted
    rows = QueryBuilder().register("reference", table).execute(query)
    return pa.RecordBatchReader.from_stream(rows).read_all().cast(spark_schema(wanted))


def _iceberg(reference: Reference, storage: Storage) -> pa.Table:
    catalog = reference.properties.get("catalog", "default")
    log = open_log(reference.place, storage, catalog, pa.schema([]))
    try:
        table = log.load()
        wanted = _wanted(reference, table.schema().as_arrow())
        scan = table.scan(selected_fields=tuple(wanted.names), limit=reference.max_rows + 1)
        return scan.to_arrow().select(wanted.names).cast(spark_schema(wanted))
    finally:
        log.close()


def _wanted(reference: Reference, columns: pa.Schema) -> pa.Schema:
    return pa.schema([columns.field(name) for name in reference.wanted_of(columns.names)])
