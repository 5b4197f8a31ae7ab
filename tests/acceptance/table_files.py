"""The rows of tables that are folders of Parquet files, from their logs and files alone.

`evidence.read_table` does it for Delta tables. Nothing of the product reads them.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

_DELETED = 2  # of an entry in a manifest of Iceberg's
_DATA = 0  # what a file holds


def of_iceberg(table: Path) -> pa.Table:
    """A table of the default catalogue: a SQLite file in the warehouse that the table is below."""
    catalog = table.parent / "iceberg.db"
    if not catalog.exists():
        return _NONE
    query = "select metadata_location from iceberg_tables where table_name = ?"
    with contextlib.closing(sqlite3.connect(catalog)) as database:
        found = database.execute(query, [table.name]).fetchone()
    if found is None:
        return _NONE
    metadata = json.loads(_local(found[0]).read_text(encoding="utf-8"))
    lists = {each["snapshot-id"]: each["manifest-list"] for each in metadata.get("snapshots", ())}
    now = metadata.get("current-snapshot-id", -1)
    return _rows(_files_of(lists[now]) if now in lists else ())


def _files_of(manifest_list: str) -> Iterator[Path]:
    for manifest in _avro(manifest_list):
        for entry in _avro(manifest["manifest_path"]):
            file = entry["data_file"]
            assert file.get("content", _DATA) == _DATA, "rows are deleted by files beside theirs"
            if entry["status"] != _DELETED:
                yield _local(file["file_path"])


def _avro(place: str) -> list[dict[str, Any]]:
    with _local(place).open("rb") as file:
        return list(fastavro.reader(file))


def _local(place: str) -> Path:
    return Path(unquote(urlsplit(place).path) if place.startswith("file:") else place)


def _rows(files: Iterable[Path]) -> pa.Table:
    read = [pq.ParquetFile(file).read() for file in files]
    return pa.concat_tables(read) if read else _NONE


_NONE = pa.table({})
