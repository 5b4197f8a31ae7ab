"""How rows become an Iceberg table's data files: types, ids of columns, partitions, bounds."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sinks.tables.files import DataFile
from sinks.tables.log import is_list, plain
from sinks.tables.partitioning import Layout, Part, can_partition
from topology.errors import InvalidSchema

if TYPE_CHECKING:
    from pyiceberg.table import Table

_ID = b"PARQUET:field_id"
_TIME = re.compile(r"(year|month|day|hour)\((.+)\)")
_SIZED = re.compile(r"(bucket|truncate)\((\d+), ?(.+)\)")
_LONGEST_BOUND = 32  # characters
_VERSION = 2  # of the format: pyiceberg writes no later one, and earlier ones count no commits
_TYPES = (
    "bool, int8 to int64, float32, float64, decimal128, text, binary, date32, timestamps, lists, "
    "maps and structs of these, and dictionaries"
)


class PartitionBy(NamedTuple):
    """A field of a partition spec: a column by its values, or by a transform of them."""

    spelled: str  # "day(at)"
    column: str
    transform: str  # as Iceberg has it: "bucket[16]"


class IcebergLayout(Layout):
    """Splits tables by a partition spec; the columns stay in the files, which tell them by ids."""

    keeps_empty_text = True

    def __init__(
        self, fields: Sequence[PartitionBy], types: Mapping[str, Any], tied: pa.Schema
    ) -> None:
        """`types` are Iceberg's, of the columns; `tied` are the rows' columns with their ids."""
        self._fields = {partition_name(each): each for each in fields}
        super().__init__([*self._fields])
        self._types, self._tied = types, tied

    def parts(self, table: pa.Table) -> Iterator[Part]:
        """See Layout. Values are Iceberg's own: a date is a number of days."""
        table = pa.Table.from_arrays(table.columns, schema=self._tied)
        for name, field in self._fields.items():
            if field.transform != "identity" and field.column in table.column_names:
                values = _transformed(
                    table[field.column], field.transform, self._types[field.column]
                )
                table = table.append_column(name, values)
        spelled = [each.spelled for each in self._fields.values()]
        for folder, values, rows in super().parts(table):
            yield Part(
                f"data/{folder}" if folder else "data",
                dict(zip(spelled, values.values(), strict=True)),
                rows,
            )

    def rest(self, table: pa.Table, present: list[str]) -> pa.Table:
        """All columns of the rows, as Iceberg's own writers have it."""
        del present
        return table.select(self._tied.names)

    def spelled(self, name: str, value: Any) -> Any:
        """A value as a manifest has it."""
        if isinstance(value, date):
            return (value - date(1970, 1, 1)).days
        if isinstance(value, str) and str(self._types[self._fields[name].column]).startswith(
            "timestamp"
        ):
            text = pa.scalar(value.removesuffix("Z"), pa.string())
            return text.cast(pa.timestamp("us")).cast(pa.int64()).as_py()
        return value


def partition_of(spelled: str, schema: pa.Schema) -> PartitionBy:
    """A field of `partition_by`. Raises InvalidSchema."""
    if spelled in schema.names:
        return PartitionBy(spelled, spelled, "identity")
    if found := _TIME.fullmatch(spelled):
        part = PartitionBy(spelled, found[2], found[1])
    elif found := _SIZED.fullmatch(spelled):
        part = PartitionBy(
            f"{found[1]}({found[2]}, {found[3]})", found[3], f"{found[1]}[{found[2]}]"
        )
    else:
        part = None
    if part is None or part.column not in schema.names:
        raise InvalidSchema(
            f"partition_by: found {spelled!r}, expected one of the columns "
            f"{', '.join(schema.names)}, or year(C), month(C), day(C), hour(C), bucket(N, C) or "
            "truncate(N, C) of one"
        )
    return part


def partition_fields(table: "Table") -> list[PartitionBy]:
    """The table's own partition spec."""
    found = []
    for field in table.spec().fields:
        column = table.schema().find_column_name(field.source_id) or field.name
        transform = str(field.transform)
        spelled = column
        if transform != "identity":
            word, _, size = transform.rstrip("]").partition("[")
            spelled = f"{word}({size}, {column})" if size else f"{word}({column})"
        found.append(PartitionBy(spelled, column, transform))
    return found


def partition_name(part: PartitionBy) -> str:
    """How the field of a table that we make is called."""
    if part.transform == "identity":
        return part.column
    word, _, size = part.transform.rstrip("]").partition("[")
    return "_".join(filter(None, [part.column, word.removesuffix("ate"), size]))


def has_exact_values(kind: pa.DataType) -> bool:
    """Whether a column of the type can be a partition by its values: a NaN is none."""
    inner = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return can_partition(kind) and not pa.types.is_floating(inner)


def _transformed(column: Any, transform: str, source: Any) -> Any:
    """A column's values in a partition spec. Raises ValueError."""
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    if "[" not in transform:
        return _in_units(column, transform)
    from pyiceberg.transforms import parse_transform  # noqa: PLC0415 - see sinks/__init__

    apply = parse_transform(transform).transform(source)
    if not column.num_chunks:
        return column
    coded = pa.concat_arrays(column.chunks).dictionary_encode(null_encoding="encode")
    values = [None if each is None else apply(each) for each in coded.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(values).take(coded.indices)])


def _in_units(column: Any, unit: str) -> Any:
    """Years, months, days or hours since 1970, in UTC."""
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
    """The type of a column in a table. Raises InvalidSchema."""
    kind: pa.DataType = plain(field.type, wider)
    _check_type(field.name, kind)
    return kind


def wider(kind: pa.DataType) -> pa.DataType:
    """The type in which Iceberg has the values of another one."""
    return _WIDER.get(kind, kind)


_WIDER: Mapping[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}


def _check_type(place: str, kind: Any) -> None:
    types = pa.types
    if types.is_struct(kind) and kind.num_fields:
        for each in kind:
            _check_type(f"{place}.{each.name}", each.type)
    elif types.is_map(kind):
        _check_type(f"{place}[key]", kind.key_type)
        _check_type(f"{place}[]", kind.item_type)
    elif types.is_list(kind):
        _check_type(f"{place}[]", kind.value_type)
    elif not (
        kind in (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32())
        or types.is_string(kind)
        or types.is_binary(kind)
        or types.is_timestamp(kind)
        or (types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)
    ):
        raise InvalidSchema(f"column '{place}': found {kind}, expected {_TYPES}")


def as_iceberg(schema: pa.Schema) -> Any:
    """Columns as Iceberg has them, without ids."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids  # noqa: PLC0415

    return _pyarrow_to_schema_without_ids(schema)


def tied(rows: pa.Schema, table: pa.Schema) -> pa.Schema:
    """The rows' columns with the table's ids: Iceberg's readers find a column by its id."""
    there = {field.name: field for field in table}
    return pa.schema(
        [_tied_field(each, there[each.name]) if each.name in there else each for each in rows]
    )


def _tied_field(given: "pa.Field[Any]", there: "pa.Field[Any]") -> "pa.Field[Any]":
    number = (there.metadata or {}).get(_ID, b"")
    kind = _tied_type(given.type, there.type)
    return pa.field(given.name, kind, given.nullable, metadata={_ID: number})


def _tied_type(given: Any, there: Any) -> Any:
    if isinstance(given, pa.StructType):
        names = {each.name: each for each in there}
        return pa.struct([_tied_field(each, names[each.name]) for each in given])
    if isinstance(given, pa.MapType):
        make: Any = pa.map_  # it takes fields as well as types
        key = _tied_field(given.key_field, there.key_field)
        return make(key, _tied_field(given.item_field, there.item_field), given.keys_sorted)
    if is_list(given):
        element = _tied_field(given.value_field, there.value_field)
        if isinstance(given, pa.FixedSizeListType):
            return pa.list_(element, given.list_size)
        return pa.large_list(element) if pa.types.is_large_list(given) else pa.list_(element)
    return given


def obstacles(table: "Table") -> Iterator[str]:
    """Why pyiceberg cannot write the table."""
    if table.format_version != _VERSION:
        yield f"found format version {table.format_version}, expected {_VERSION}"
    if "encryption.key-id" in table.properties:
        yield "its files are encrypted"
    for name in ("write.data.path", "write.metadata.path"):
        if name in table.properties:
            yield f"it has {name} = {table.properties[name]}"
    top = {field.field_id for field in table.schema().fields}
    for field in table.spec().fields:
        if field.source_id not in top:
            yield f"it is partitioned by {field.name}, a column within a column"


def data_paths(table: "Table", since: int = -1) -> Iterator[str]:
    """The table's data files, of manifests newer than a sequence number."""
    current = table.current_snapshot()
    for manifest in [] if current is None else current.manifests(table.io):
        if manifest.sequence_number > since:
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path


def as_manifest_entry(file: DataFile, root: str, table: "Table") -> Any:
    """A file as a manifest has it; the columns within columns have no bounds."""
    from pyiceberg.manifest import (  # noqa: PLC0415 - see sinks/__init__
        DataFile as Entry,
    )
    from pyiceberg.manifest import DataFileContent, FileFormat  # noqa: PLC0415
    from pyiceberg.typedef import Record  # noqa: PLC0415

    schema, found = table.schema(), file.statistics
    ids = {name: schema.find_field(name).field_id for name in found.nulls}
    return Entry.from_args(
        content=DataFileContent.DATA,
        file_path=f"{root}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*file.partition.values()),
        record_count=file.num_rows,
        file_size_in_bytes=file.num_bytes,
        column_sizes=None,
        value_counts=dict.fromkeys(ids.values(), file.num_rows),
        null_value_counts={ids[name]: nulls for name, nulls in found.nulls.items()},
        nan_value_counts=None,
        lower_bounds=_bounds(found.minima, schema, lambda text: text[:_LONGEST_BOUND]),
        upper_bounds=_bounds(found.maxima, schema, _upper),
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
    )


def _bounds(
    values: Mapping[str, Any], schema: Any, cut: Callable[[str], str | None]
) -> dict[int, bytes]:
    from pyiceberg.conversions import to_bytes  # noqa: PLC0415 - see sinks/__init__

    found = {}
    for name, value in values.items():
        field = schema.find_field(name)
        bound = cut(value) if isinstance(value, str) else value
        if bound is not None:
            found[field.field_id] = to_bytes(field.field_type, bound)
    return found


def _upper(text: str) -> str | None:
    """At least the text; None if there is no such bound."""
    from pyiceberg.utils.truncate import truncate_upper_bound_text_string  # noqa: PLC0415

    return truncate_upper_bound_text_string(text, _LONGEST_BOUND)
