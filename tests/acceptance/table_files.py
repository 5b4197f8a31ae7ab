"""The rows of tables that are folders of Parquet files, from their logs and files alone.

`evidence.read_table` does it for Delta tables. Nothing of the product reads them.
"""

import contextlib
import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

_DELETED = 2  # of an entry in a manifest of Iceberg's
_DATA = 0  # what a file holds


def of_iceberg(table: Path) -> pa.Table:
    """A table of the default catalogue: a SQLite file in the warehouse that the table is below."""
    return read_iceberg(metadata_of(table.parent / "iceberg.db", table.name))


def metadata_of(catalog: Path, name: str) -> str | None:
    """Where the metadata of a table are, as a SQLite file says."""
    if not catalog.exists():
        return None
    query = "select metadata_location from iceberg_tables where table_name = ?"
    with contextlib.closing(sqlite3.connect(catalog)) as database:
        found = database.execute(query, [name]).fetchone()
    return None if found is None else str(found[0])


def read_iceberg(location: str | None, files: fs.FileSystem | None = None) -> pa.Table:
    """The rows of a table whose metadata are there, from its metadata and its files alone."""
    read = [rows for rows, _ in pieces(location, files)]
    # Spark says of a file's columns that none of their values is null.
    return pa.concat_tables(read, promote_options="default") if read else pa.table({})


def pieces(
    location: str | None, files: fs.FileSystem | None = None
) -> Iterator[tuple[pa.Table, dict[str, Any]]]:
    """The rows of each file of the newest snapshot, with the file's partition."""
    store = _Files(files or fs.LocalFileSystem())
    metadata = {} if location is None else json.loads(store.content(location))
    lists = {each["snapshot-id"]: each["manifest-list"] for each in metadata.get("snapshots", ())}
    if newest := lists.get(metadata.get("current-snapshot-id")):
        for file, partition in store.files_of(newest):
            yield store.rows(file), partition


class _Files:
    def __init__(self, files: fs.FileSystem) -> None:
        self._files = files

    def content(self, place: str) -> bytes:
        with self._files.open_input_stream(_path(place)) as file:
            return file.read()

    def rows(self, place: str) -> pa.Table:
        with self._files.open_input_file(_path(place)) as file:
            return pq.ParquetFile(file).read()

    def files_of(self, manifest_list: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for manifest in self._avro(manifest_list):
            for entry in self._avro(manifest["manifest_path"]):
                file = entry["data_file"]
                assert file.get("content", _DATA) == _DATA, (
                    "rows are deleted by files beside theirs"
                )
                if entry["status"] != _DELETED:
                    yield file["file_path"], file["partition"]

    def _avro(self, place: str) -> list[Any]:
        return list(fastavro.reader(io.BytesIO(self.content(place))))


def _path(place: str) -> str:
    """The path in a file system of a path or a URI: a store's begins with its bucket."""
    if place.startswith("file:"):  # Spark writes no authority
        return unquote(urlsplit(place).path)
    return place.partition("://")[2] or place
