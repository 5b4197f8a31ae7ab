"""Partition folders, named after values as Hive and Spark name them."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from topology.errors import InvalidSchema

_NULL = "__HIVE_DEFAULT_PARTITION__"
# What Spark's ExternalCatalogUtils escapes, and NUL, which no path may hold.
_ESCAPED = frozenset(map(chr, range(0x20))) | frozenset("\"#%'*/:=?\\\x7f{[]^")
_LONGEST_NAME = 200  # bytes of a folder's name; file systems take 255


class Part(NamedTuple):
    """Rows that share a folder. An empty `folder` is the table's own."""

    folder: str  # below the table's, "/" between levels
    values: dict[str, str | None]  # by partition column, as the layout spells them
    table: pa.Table  # the file's content


class Layout:
    """Splits tables by the values of some columns, as Delta's protocol has it. Pure.

    A folder's name holds no separator that a value or a column's name brought, so that no
    row is ever written outside of its table. Names too long for a file system are cut and
    told apart by a digest; that harms nobody, because a log names the values beside the file.
    """

    columns: Sequence[str] | None = None
    """Of the files; None: all but those of the partition."""

    def __init__(self, partition_by: Sequence[str] = ()) -> None:
        self.partition_by = tuple(partition_by)

    def parts(self, table: pa.Table) -> Iterator[Part]:
        """Yield the rows of each combination of values, in the order they came; none is empty.

        A partition column that the table lacks is null. The type of each must be one that
        `can_partition` accepts, and times of the years 1 to 9999: Arrow cannot spell others.
        """
        if not self.partition_by:
            yield Part("", {}, table)
            return
        present = [name for name in self.partition_by if name in table.column_names]
        columns = [_values(table[name]) for name in present]
        content = table.drop_columns(present)
        if self.columns is not None:
            content = table.select(self.columns)
        for rows in _groups(columns, table.num_rows):
            values = {
                name: values[codes[rows[0]]]
                for name, (values, codes) in zip(present, columns, strict=True)
            }
            found = {name: values.get(name) for name in self.partition_by}
            folders = [_folder(name, _text(value)) for name, value in found.items()]
            spelled = {name: self.spelled(name, value) for name, value in found.items()}
            whole = len(rows) == table.num_rows
            yield Part("/".join(folders), spelled, content if whole else content.take(rows))

    def misfits(self, table: pa.Table, schema: pa.Schema) -> dict[int, str]:
        """Return by index the rows that fit a schema, and no folder, each with the reason."""
        return {} if self.columns else empty_texts(table, schema, self.partition_by)

    def spelled(self, name: str, value: Any) -> str | None:
        """Spell a partition column's value as the table's log has it."""
        del name
        return _text(value)


def can_partition(kind: pa.DataType) -> bool:
    """Whether the values of a type have a spelling in folders."""
    if isinstance(kind, pa.DictionaryType):
        kind = kind.value_type
    types = pa.types
    checks: tuple[Callable[[pa.DataType], bool], ...] = (
        types.is_string,
        types.is_large_string,
        types.is_integer,
        types.is_floating,
        types.is_decimal,
        types.is_boolean,
        types.is_date32,
        types.is_timestamp,
    )
    return any(check(kind) for check in checks)


def empty_texts(table: pa.Table, schema: pa.Schema, partition_by: Sequence[str]) -> dict[int, str]:
    """Return by index the rows with an empty text, which becomes null, where null is refused."""
    wrong: dict[int, str] = {}
    for name in partition_by:
        if name not in schema.names or schema.field(name).nullable:
            continue
        column = table[name]
        if isinstance(column.type, pa.DictionaryType):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            empty: Any = pc.equal(column, pa.scalar("", column.type))
            reason = f"column '{name}': found ''; a partition has it as null, which it may not be"
            wrong = dict.fromkeys(pc.indices_nonzero(empty).to_pylist(), reason) | wrong
    return wrong


def check_partitions(
    table: str,
    schema: pa.Schema,
    names: Sequence[str],
    can_partition: Callable[[pa.DataType], bool],
    *,
    leaves_some: bool,
) -> None:
    """Raise InvalidSchema when rows of a schema cannot be partitioned by these columns.

    `leaves_some`: files lack the columns of their partition, so there has to be another one.
    """
    if not set(names) <= set(schema.names) or len(set(names)) != len(names):
        what = f"expected some of the columns {', '.join(schema.names)}, each once"
    elif leaves_some and len(names) == len(schema.names):
        what = "a column that is no partition is needed"
    else:
        fields = [schema.field(name) for name in names]
        wrong = [field for field in fields if not can_partition(field.type)]
        if not wrong:
            return
        what = f"column '{wrong[0].name}' is {wrong[0].type}, whose values are no partitions"
    raise InvalidSchema(f"table '{table}': partition_by is {[*names]}; {what}")


_Coded: TypeAlias = tuple[list[Any], npt.NDArray[np.int64]]


def _values(column: "pa.ChunkedArray[Any]") -> _Coded:
    """Return a column's distinct values, None included, and the index of each row's value."""
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    kind: Any = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us"), safe=False)
    if column.num_chunks == 0:
        return [], np.zeros(0, np.int64)
    array: Any = pa.concat_arrays(column.chunks).dictionary_encode(null_encoding="encode")
    values = array.dictionary
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.string())
    found = values.to_pylist()
    if pa.types.is_timestamp(kind) and kind.tz is not None:  # Delta wants ISO 8601 then
        found = [None if text is None else f"{text.replace(' ', 'T')}Z" for text in found]
    return found, array.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _groups(columns: list[_Coded], num_rows: int) -> Iterator[npt.NDArray[np.int64]]:
    if not num_rows:
        return
    groups = np.zeros(num_rows, np.int64)
    for values, codes in columns:
        groups = np.unique(groups * len(values) + codes, return_inverse=True)[1]
    order = np.argsort(groups, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def _text(value: Any) -> str | None:
    """Spell a value as Delta's protocol does; the empty text is null, as in Spark."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return repr(value) if math.isfinite(value) else ("-" if value < 0 else "") + "Infinity"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if value not in (None, "") else None


def _folder(name: str, value: str | None) -> str:
    folder = f"{_escaped(name)}={_NULL if value is None else _escaped(value)}"
    raw = folder.encode()
    if len(raw) <= _LONGEST_NAME:
        return folder
    digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
    return f"{raw[: _LONGEST_NAME - 33].decode(errors='ignore')}-{digest}"


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)
