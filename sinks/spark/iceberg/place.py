"""Where an Iceberg table may lie."""

import tempfile
from pathlib import Path

from sinks.names import checked_table
from sinks.paths import local_path
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
    folder = local_path(path)
    if folder is None:
        raise SinkFailed(
            f"table '{table}' at {path} is not on a local file system, which an "
            "IcebergSink needs; allowed there is DeltaSink"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SinkFailed(
            f"table '{table}' in warehouse {warehouse}: {error}; "
            "a folder that can be written is needed"
        ) from error
    if (folder / "_delta_log").exists():
        raise SinkFailed(f"table '{table}' at {folder} is a Delta table; use DeltaSink")
    return folder
