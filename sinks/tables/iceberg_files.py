"""Files of an Iceberg table: pyiceberg's file systems, and rows as data files."""

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as slot
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyiceberg.conversions import to_bytes
from pyiceberg.io import S3_RETRY_STRATEGY_IMPL
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record

from sinks.columns import is_list
from sinks.storage import Storage
from sinks.tables.files import DataFile, is_local, sync
from sinks.tables.iceberg import PartitionBy
from sinks.tables.log import plain
from sinks.tables.partitioning import Layout, Part
from topology.errors import InvalidSchema

_METADATA = ".metadata.json"
_KEPT_BYTES = 8 * 1024 * 1024  # manifests until they are merged, which are a hundred
_kept: dict[str, bytes] = {}  # what was written here, by location, the oldest first
_lock = threading.Lock()
_FIELD_ID = b"PARQUET:field_id"
_TYPES = (
    "bool, int8 to int64, float32, float64, decimal128, text, binary, date32, timestamps, lists, "
    "maps and structs of these, and dictionaries"
)


class TableFileIO(PyArrowFileIO):
    """Writes a file of metadata with one request, and reads it again from memory.

    On a local disk a file survives a power cut once it is closed, and a catalogue names it only
    then. Every name has a new id in it, so nobody writes a file twice or looks whether it exists.
    """

    def new_input(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _File(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)

    new_output = new_input

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        return _shared_filesystem(scheme, netloc or "", self.properties)


class _File(PyArrowFile):
    def __len__(self) -> int:
        kept = _kept.get(self.location)
        return super().__len__() if kept is None else len(kept)

    def open(self, seekable: bool = True) -> Any:
        kept = _kept.get(self.location)
        return super().open(seekable) if kept is None else io.BytesIO(kept)

    def create(self, overwrite: bool = False) -> Any:
        del overwrite
        return _Stream(self)

    def put(self, content: bytes) -> None:
        """Write the content. On a local disk, sync it and the folders made for it."""
        path, local = Path(self._path), is_local(self._filesystem)
        folders = [path.parent] if local else []
        while folders and not folders[-1].exists():
            folders.append(folders[-1].parent)
        with super().create(overwrite=True) as stream:
            stream.write(content)
        for each in [path, *folders] if local else ():
            sync(str(each))
        folder = self.location.rpartition("/")[0]
        with _lock:
            if self.location.endswith(_METADATA):  # only a table's newest is read again
                for known in [*_kept]:
                    if known.startswith(folder) and known.endswith(_METADATA):
                        del _kept[known]
            _kept[self.location] = content
            while sum(map(len, _kept.values())) > _KEPT_BYTES:
                del _kept[next(iter(_kept))]


class _Stream:
    """Buffers a file, and puts it when it is closed without an error."""

    def __init__(self, file: _File) -> None:
        self._file, self._content = file, bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()

    def write(self, content: bytes) -> int:
        self._content += content
        return len(content)

    def tell(self) -> int:
        return len(self._content)

    def close(self) -> None:
        self._file.put(bytes(self._content))


@dataclass(frozen=True, slots=True)
class CatalogStorage(Storage):
    """The store of a catalogue's table, with the credentials that the catalogue gave for it."""

    properties: Mapping[str, str] = slot(default_factory=dict, repr=False)

    def filesystem(self, uri: str) -> tuple[fs.FileSystem, str]:
        scheme, netloc, path = PyArrowFileIO.parse_location(uri, {})
        if scheme == "file":
            return fs.LocalFileSystem(), path
        return _shared_filesystem(scheme, netloc, self.properties), path.rstrip("/")


def _shared_filesystem(scheme: str, netloc: str, properties: Mapping[str, Any]) -> fs.FileSystem:
    """Return a cached client; pyiceberg makes new ones with each load."""
    known = tuple(sorted((name, str(value)) for name, value in properties.items()))
    return _filesystem(scheme, netloc, known)


@lru_cache(maxsize=16)
def _filesystem(scheme: str, netloc: str, properties: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    found: fs.FileSystem = PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc)
    if isinstance(found, fs.S3FileSystem) and S3_RETRY_STRATEGY_IMPL not in dict(properties):
        pickled: Any = found.__reduce__()
        make, (given,) = pickled
        found = make({**given, "allow_delayed_open": True})  # pyiceberg has no property for it
    return found


class IcebergLayout(Layout):
    """Splits tables by a partition spec. The columns stay in the files, with their field ids."""

    def __init__(self, table: Table, rows: pa.Schema) -> None:
        schema = table.schema()
        self._fields = {each.field_name: each for each in partition_fields(table)}
        super().__init__([*self._fields])
        columns = [each.column for each in self._fields.values()]
        self._types = {name: schema.find_field(name).field_type for name in columns}
        self._rows = _with_ids(rows, schema.as_arrow())
        self.columns = rows.names

    def parts(self, table: pa.Table) -> Iterator[Part]:
        """Split by the partition spec. Values are Iceberg's own: a date is a number of days."""
        table = pa.Table.from_arrays(table.columns, schema=self._rows)
        for name, field in self._fields.items():
            if field.transform != "identity" and field.column in table.column_names:
                kind = self._types[field.column]
                values = _transformed(table[field.column], field.transform, kind)
                table = table.append_column(name, values)
        spelled = [each.spelled for each in self._fields.values()]
        for folder, values, rows in super().parts(table):
            named = dict(zip(spelled, values.values(), strict=True))
            yield Part(f"data/{folder}" if folder else "data", named, rows)

    def spelled(self, name: str, value: Any) -> Any:
        """Spell a value as a manifest has it."""
        if isinstance(value, date):
            return (value - date(1970, 1, 1)).days
        kind = str(self._types[self._fields[name].column])
        if isinstance(value, str) and kind.startswith("timestamp"):
            text = pa.scalar(value.removesuffix("Z"), pa.string())
            return text.cast(pa.timestamp("us")).cast(pa.int64()).as_py()
        return value


def partition_fields(table: Table) -> list[PartitionBy]:
    name_of, fields = table.schema().find_column_name, table.spec().fields
    return [
        PartitionBy.of(name_of(each.source_id) or each.name, str(each.transform)) for each in fields
    ]


def _transformed(column: Any, transform: str, source: Any) -> Any:
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    if "[" not in transform:
        return _in_units(column, transform)
    if not column.num_chunks:
        return column
    apply = parse_transform(transform).transform(source)
    coded = pa.concat_arrays(column.chunks).dictionary_encode(null_encoding="encode")
    values = [None if each is None else apply(each) for each in coded.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(values).take(coded.indices)])


def _in_units(column: Any, unit: str) -> Any:
    """Count years, months, days or hours since 1970, in UTC."""
    calendar: Any = pc
    if not pa.types.is_date32(column.type):
        column = column.cast(pa.timestamp("us"), safe=False)
    if unit in ("day", "hour"):
        width = 86_400_000_000 if unit == "day" else 3_600_000_000
        times = calendar.floor_temporal(column.cast(pa.timestamp("us")), unit=unit)
        return pc.divide(times.cast(pa.int64()), width)
    years = pc.subtract(calendar.year(column), 1970)
    if unit == "year":
        return years
    return pc.add(pc.multiply(years, 12), pc.subtract(calendar.month(column), 1))


def stored_type(field: "pa.Field[Any]") -> pa.DataType:
    """Return the type of a column in a table. Raises InvalidSchema."""

    def leaf(given: pa.DataType) -> pa.DataType:
        kind = wider(given)
        is_known = any(check(kind) for check in _KNOWN)
        if not is_known or (pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision):
            raise InvalidSchema(f"column '{field.name}': found {kind}, expected {_TYPES}")
        return kind

    kind: pa.DataType = plain(field.type, leaf)
    return kind


def wider(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Iceberg has the values of another one."""
    return _WIDER.get(kind, kind)


_WIDER: Mapping[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}
_KNOWN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_int32,
    pa.types.is_int64,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_date32,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_decimal128,
)


def _with_ids(rows: pa.Schema, table: pa.Schema) -> pa.Schema:
    """Add the table's field ids to the rows' columns: Iceberg's readers find columns by them."""
    there = {field.name: field for field in table}
    return pa.schema(
        [_field_with_id(each, there[each.name]) if each.name in there else each for each in rows]
    )


def _field_with_id(given: "pa.Field[Any]", there: "pa.Field[Any]") -> "pa.Field[Any]":
    number = (there.metadata or {}).get(_FIELD_ID, b"")
    kind = _type_with_ids(given.type, there.type)
    return pa.field(given.name, kind, given.nullable, metadata={_FIELD_ID: number})


def _type_with_ids(given: Any, there: Any) -> Any:
    if isinstance(given, pa.StructType):
        names = {each.name: each for each in there}
        return pa.struct([_field_with_id(each, names[each.name]) for each in given])
    if isinstance(given, pa.MapType):
        make: Any = pa.map_  # it takes fields as well as types
        key = _field_with_id(given.key_field, there.key_field)
        return make(key, _field_with_id(given.item_field, there.item_field), given.keys_sorted)
    if is_list(given):
        element = _field_with_id(given.value_field, there.value_field)
        if isinstance(given, pa.FixedSizeListType):
            return pa.list_(element, given.list_size)
        return pa.large_list(element) if pa.types.is_large_list(given) else pa.list_(element)
    return given


def data_files(table: Table, since: int = -1) -> Iterator[Entry]:
    """Yield the table's data files, of manifests newer than a sequence number."""
    current = table.current_snapshot()
    for manifest in [] if current is None else current.manifests(table.io):
        if manifest.sequence_number > since and manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file


def manifest_entry(file: DataFile, table: Table) -> Entry:
    """Make a file's manifest entry. Columns within columns have no bounds."""
    schema, found = table.schema(), file.statistics
    ids = {name: schema.find_field(name).field_id for name in found.nulls}
    return Entry.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*file.partition.values()),
        record_count=file.num_rows,
        file_size_in_bytes=file.num_bytes,
        column_sizes=None,
        value_counts=dict.fromkeys(ids.values(), file.num_rows),
        null_value_counts={ids[name]: nulls for name, nulls in found.nulls.items()},
        nan_value_counts=None,
        lower_bounds=_bounds(found.minima, schema),
        upper_bounds=_bounds(found.maxima, schema),
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
    )


def _bounds(values: Mapping[str, Any], schema: Any) -> dict[int, bytes]:
    fields = {name: schema.find_field(name) for name in values}
    kinds = {name: field.field_type for name, field in fields.items()}
    return {fields[name].field_id: to_bytes(kinds[name], value) for name, value in values.items()}
