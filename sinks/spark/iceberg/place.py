"""Where an Iceberg table may lie."""

from pathlib import Path

from sinks.names import checked_table
from sinks.paths import check_kind, table_folder
from sinks.spark.writable import needing_to_write, try_out
from topology.errors import InvalidSchema, SinkFailed


def checked_name(table: str) -> str:
    """The name itself. Raises InvalidSchema, also where Iceberg would read more into it."""
    for found in ("#", "metadata.json"):
        if found in checked_table(table):
            raise InvalidSchema(
                f"table {table!r}: found {found!r}, by which Iceberg means a part of a table; "
                "allowed is a path without it"
            )
    return table


def writable_folder(table: str, path: str, warehouse: str) -> Path:
    """The table's folder, which is made. Raises SinkFailed: it is of no use."""
    folder = table_folder(warehouse, table)
    if folder is None:
        raise SinkFailed(
            f"table '{table}' at {path} is not on a local file system, which an "
            "IcebergSink needs; allowed there is DeltaSink"
        )
    with needing_to_write(table, warehouse):
        check_kind(table, folder, "IcebergSink")
        try_out(folder)
    return folder
