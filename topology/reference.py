"""Reference tables: loaded before the first record, used by bolts, refreshed as a whole."""

import re
import threading
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from datetime import date, datetime
from numbers import Number
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, get_args, get_origin

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar

from topology.errors import BoltError, InvalidReference, ReferenceLoadFailed, ReferenceNotLoaded

if TYPE_CHECKING:
    from topology.state import StoredRows

Column: TypeAlias = "pa.Array[Any]"

_SPREAD = 4  # the widest range of whole numbers, as a multiple of their count, for a flat array
_FEW = 2  # keys per value looked up, up to which Arrow's look-up is the fastest
_INTEGERS = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
)  # fmt: skip
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_BINARIES = (pa.binary(), pa.large_binary(), pa.binary_view())


class KeyIndex:
    """Finds rows by unique keys without nulls.

    Measured per value in a chunk of 4,000: 15 ns by Arrow in a thousand texts, 140 ns by a
    dictionary in 100,000 texts, where Arrow takes 940 as it hashes the whole table for each
    chunk; dense whole numbers need neither, and take 10 ns.
    """

    def __init__(self, keys: Sequence[Column]) -> None:
        self._keys = keys
        self._count = len(keys[0])
        self._by_key: dict[Any, int] | None = None
        self._by_number = _flat(keys[0]) if len(keys) == 1 else None

    def of(self, columns: Sequence[Column]) -> Column:
        """Return the row index of each value of columns of the keys' types, or null."""
        if len(columns) > 1:
            values = zip(*(column.to_pylist() for column in columns), strict=True)
            return pa.array(list(map(self._index().get, values)), pa.int64())
        (column,) = columns
        if self._by_number is not None:
            return _numbered(column, *self._by_number)
        if self._count <= _FEW * len(column):
            import pyarrow.compute as pc  # noqa: PLC0415 - costs 0.05 s

            return pc.index_in(column, value_set=self._keys[0])
        return pa.array(list(map(self._index().get, column.to_pylist())), pa.int64())

    def _index(self) -> dict[Any, int]:
        if self._by_key is None:
            lists = [key.to_pylist() for key in self._keys]
            keys = lists[0] if len(lists) == 1 else zip(*lists, strict=True)
            self._by_key = {key: index for index, key in enumerate(keys)}
        return self._by_key


def comparable(column: Column, kind: pa.DataType) -> "Column | None":
    """Cast a column to a key's type; None when its values cannot equal any of the keys.

    Only text, bytes and whole numbers are cast: other conversions might make values equal.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return column.cast(kind)
    for family in (_INTEGERS, _TEXTS, _BINARIES):
        if column.type in family and kind in family:
            return column.cast(kind)
    return None


def key_column(column: Column) -> "Column | None":
    """Cast a table's column to the type of keys; None when its values cannot be keys."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type in _INTEGERS:
        return column.cast(pa.int64())  # so that any other whole number can be compared
    kind = column.type
    if kind in (pa.string_view(), pa.binary_view()):
        return column.cast(pa.string() if kind == pa.string_view() else pa.binary())
    allowed = (
        kind in (*_TEXTS, *_BINARIES, pa.bool_())
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
    return column if allowed else None


def _flat(keys: Column) -> tuple[int, Any] | None:
    """Return the least key and an array of indices by distance from it; None for sparse keys."""
    if keys.type != pa.int64() or not len(keys):
        return None
    numbers = keys.to_numpy()
    least, span = int(numbers.min()), int(numbers.max()) - int(numbers.min()) + 1
    if span > _SPREAD * len(numbers):
        return None
    indices = np.full(span, -1, np.int64)
    indices[numbers - least] = np.arange(len(numbers))
    return least, indices


def _numbered(column: Column, least: int, indices: Any) -> Column:
    numbers = column.fill_null(least).to_numpy()
    outside = (numbers < least) | (numbers > least + len(indices) - 1)
    found = indices[np.where(outside, 0, numbers - least)]
    missing = outside | (found < 0)
    if column.null_count:
        missing |= column.is_null().to_numpy(zero_copy_only=False)
    column_of_places: Column = pa.array(found, mask=missing)
    return column_of_places


KEY_TYPES = "text, bytes, whole numbers, booleans, decimals, dates or timestamps"
_SHOWN = 3  # examples of invalid keys in a message


class LoadedTable:
    """One load of a reference table. Immutable, so any thread may read it.

    Its dictionary and its index are made on demand: joins need no dictionary, which takes about
    half a kilobyte a row, and look-ups no index.
    """

    def __init__(self, keys: list[Column], values: pa.RecordBatch, *, single: bool) -> None:
        self.keys = keys
        self.values = values
        self.index = KeyIndex(keys)
        self.stored: StoredRows | None = None
        """Stored rows of a state that follows its own commits."""
        self._single = single
        self._rows: dict[Any, Any] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.keys[0])

    @property
    def has_rows(self) -> bool:
        """Whether its dictionary exists."""
        return self._rows is not None

    def with_rows(self, newer: "LoadedTable") -> "LoadedTable":
        """Return this load with the rows of a newer one merged by key."""
        kept = newer.index.of(self.keys).is_null()
        keys = [
            pa.concat_arrays([ours.filter(kept), theirs])
            for ours, theirs in zip(self.keys, newer.keys, strict=True)
        ]
        values = pa.RecordBatch.from_arrays(
            [
                pa.concat_arrays([ours.filter(kept), theirs])
                for ours, theirs in zip(self.values.columns, newer.values.columns, strict=True)
            ],
            schema=self.values.schema,
        )
        whole = LoadedTable(keys, values, single=self._single)
        whole.stored = self.stored
        if self._rows is not None:  # a new one: readers of the old one see one load
            whole._rows = {**self._rows, **newer.rows()}
        return whole

    def rows(self) -> dict[Any, Any]:
        """Return the rows by key: read-only mappings of the columns, or one column's values."""
        if self._rows is None:
            lists = [key.to_pylist() for key in self.keys]
            keys: Iterable[Any] = lists[0] if len(lists) == 1 else zip(*lists, strict=True)
            columns = [column.to_pylist() for column in self.values.columns]
            values: Iterable[Any]
            if self._single:
                values = columns[0]
            elif columns:
                names = self.values.schema.names
                values = (
                    MappingProxyType(dict(zip(names, row, strict=True)))
                    for row in zip(*columns, strict=True)
                )
            else:
                values = [MappingProxyType({})] * self.num_rows
            self._rows = dict(zip(keys, values, strict=True))
        return self._rows


def _check_keys(reference: str, key: Sequence[str], keys: list[Column]) -> None:
    nulls = sum(column.null_count for column in keys)
    if nulls:
        raise ReferenceLoadFailed(reference, f"key {list(key)}: found {nulls} nulls, expected none")
    names = [str(number) for number in range(len(keys))]
    counts = pa.table(keys, names=names).group_by(names).aggregate([([], "count_all")])
    if counts.num_rows == len(keys[0]):
        return
    twice = [row for row in counts.to_pylist() if row["count_all"] > 1]
    shown = ", ".join(
        repr(row["0"] if len(names) == 1 else tuple(row[name] for name in names))
        for row in twice[:_SHOWN]
    )
    more = ", …" if len(twice) > _SHOWN else ""
    reason = f"key {list(key)}: found {len(twice)} duplicates, expected none: {shown}{more}"
    raise ReferenceLoadFailed(reference, reason)


def _whole(column: "pa.ChunkedArray[Any]") -> Column:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


Rows: TypeAlias = "pa.Table | Mapping[Any, Any] | Iterable[Mapping[str, Any]]"

MAX_ROWS = 1_000_000
_FORMATS = {
    ".parquet": "parquet",
    ".delta": "delta",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_NAMED = ("table", "iceberg")
_PACKED = (".gz", ".bz2", ".zst")
_TABLE_NAME = re.compile(r"(?:[^/\\:\s`]|`[^`]+`)+")
_FORMAT = re.compile(r"[A-Za-z][\w.]*")


K = TypeVar("K", default=Any)


class Reference(Mapping[K, Any], Generic[K]):
    """A look-up table: a mapping, and an Arrow join. The constructor reads nothing.

    The mapping is from the key (a tuple, if it has several columns) to a read-only mapping of the
    row's other columns, or to the value of one column. References compare by identity.

    The service loads it before the first record, and again every `refresh_seconds`. A new load
    replaces the old one as a whole, on the owner thread between two turns of its loop: a bolt
    that runs there sees one load during a chunk. Any thread may read; each look-up and each
    join uses one load.

    `place` is the name of a Spark table, or a path with one of the suffixes `.parquet`, `.delta`,
    `.csv`, `.json`, or with `format`. Relative paths are below the warehouse. `format="iceberg"`
    takes the name of a table, as `IcebergSink` does. `key` names the column or columns that
    identify a row, `columns` the other columns to load (default: all); with `value` there is one,
    and look-ups return its value. With `key_type` a type checker checks look-ups (`tuple[str, int]`
    for two columns), and a load with other keys fails. `properties` are those of Spark's reader.
    More than `max_rows` rows fail the load. `name` is for metrics, logs and errors. Raises
    InvalidReference.
    """

    def __init__(
        self,
        place: str,
        *,
        key: str | Iterable[str],
        value: str | None = None,
        key_type: type[K] | None = None,
        columns: Iterable[str] | None = None,
        refresh_seconds: float | None = None,
        max_rows: int = MAX_ROWS,
        format: str | None = None,  # noqa: A002 - the name that Spark's reader has for it
        properties: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        self.place = place
        self.format = format or _format_of(place)
        self.name = name or _name_of(place, self.format)
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.value = value
        self.columns = None if columns is None else tuple(columns)
        self.refresh_seconds = refresh_seconds
        self.max_rows = max_rows
        self.properties = dict(properties or {})
        is_tuple = get_origin(key_type) is tuple
        kinds = get_args(key_type) if is_tuple else (key_type,)
        self._key_types = kinds if key_type else (None,) * len(self.key)
        self._check()
        self._lock = threading.Lock()  # for replacing `loaded` and `_rows`
        self.loaded: LoadedTable | None = None
        self._fitting: set[Any] = set()  # types that keys of this load may have, once looked up
        # _Unmade makes the dictionary, or raises: a look-up costs no more than the dictionary's.
        self._rows: Mapping[Any, Any] = _Unmade(self, None)

    def wanted_of(self, columns: Sequence[str]) -> list[str]:
        """Return the columns of a table to read. Raises ReferenceLoadFailed."""
        others = self.columns if self.value is None else (self.value,)
        if others is None:
            return [*columns]
        wanted = dict.fromkeys((*self.key, *others))
        for name in wanted:
            if name not in columns:
                reason = f"found no column '{name}', expected it among {', '.join(columns)}"
                raise ReferenceLoadFailed(self.name, reason)
        return [*wanted]

    @property
    def is_loaded(self) -> bool:
        return self.loaded is not None

    def __getitem__(self, key: K) -> Any:
        try:
            return self._rows[key]
        except KeyError:
            if type(key) not in self._fitting:
                self._check_type(key)
            raise

    def get(self, key: K, /, default: Any = None) -> Any:
        found = self._rows.get(key, default)
        if found is default and type(key) not in self._fitting:
            self._check_type(key)
        return found

    def __contains__(self, key: object) -> bool:
        is_there = key in self._rows
        if not is_there and type(key) not in self._fitting:
            self._check_type(key)
        return is_there

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def __len__(self) -> int:
        return self._current().num_rows

    def values(self) -> ValuesView[Any]:
        return self._rows.values()

    def items(self) -> ItemsView[K, Any]:  # of one load, whatever is loaded meanwhile
        return self._rows.items()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"reference('{self.place}', key={self.key})"

    def join(
        self, batch: pa.RecordBatch, *, on: str | Iterable[str], prefix: str = ""
    ) -> pa.RecordBatch:
        """Append this table's columns to a batch, named with `prefix`.

        `on` names the batch's key columns. The rows keep their order and number, and so their
        lineage; where the table lacks the key the new columns are null. Raises BoltError when the
        columns do not fit, and ReferenceNotLoaded.
        """
        loaded = self._current()
        names = (on,) if isinstance(on, str) else tuple(on)
        if len(names) != len(self.key):
            raise BoltError(
                f"reference '{self.name}': found join(on={list(names)}), "
                f"expected {len(self.key)} columns for the key {list(self.key)}"
            )
        pairs = zip(names, self.key, loaded.keys, strict=True)
        columns = [self._comparable(batch, *pair) for pair in pairs]
        schema = batch.schema
        for field in loaded.values.schema:
            name = prefix + field.name
            if name in schema.names:
                raise BoltError(
                    f"reference '{self.name}' would add a second column '{name}' to the batch. "
                    "Use another prefix="
                )
            schema = schema.append(pa.field(name, field.type))
        found = loaded.values.take(loaded.index.of(columns))
        return pa.RecordBatch.from_arrays([*batch.columns, *found.columns], schema=schema)

    def load(self, rows: Rows) -> None:
        """Load rows in a test: mappings, a table, or a mapping from keys to what look-ups return.

        Raises ReferenceLoadFailed.
        """
        self.use(self.read(self.table_of(rows)))

    def table_of(self, rows: Rows) -> pa.Table:
        """Return the table of what `load` takes. Raises ReferenceLoadFailed."""
        if isinstance(rows, Mapping):
            rows = [self._row_of(*pair) for pair in rows.items()]
        if not isinstance(rows, pa.Table):
            listed = [dict(row) for row in rows]
            if not listed:
                reason = "found no rows, so its columns are unknown. Use an empty pyarrow.Table"
                raise ReferenceLoadFailed(self.name, reason)
            names = dict.fromkeys(name for row in listed for name in row)
            rows = pa.table({name: [row.get(name) for row in listed] for name in names})
        return rows

    def _row_of(self, key: Any, found: Any) -> dict[str, Any]:
        """Return the row of what a look-up returns. Raises ReferenceLoadFailed."""
        keys = (key,) if len(self.key) == 1 else key
        if not isinstance(keys, tuple) or len(keys) != len(self.key):
            reason = f"found the key {key!r:.80}, expected a tuple of {', '.join(self.key)}"
            raise ReferenceLoadFailed(self.name, reason)
        others = found if self.value is None else {self.value: found}
        if not isinstance(others, Mapping):
            reason = f"key {key!r:.80}: found {found!r:.80}, expected a mapping of the columns"
            raise ReferenceLoadFailed(self.name, reason)
        return {**dict(zip(self.key, keys, strict=True)), **others}

    def unload(self) -> None:
        with self._lock:
            self.loaded, self._rows = None, _Unmade(self, None)

    def read(self, table: pa.Table) -> LoadedTable:
        """Make a load of a table, on any thread, for `use`.

        Makes the dictionary if the current load has one. Raises ReferenceLoadFailed for too many
        rows, a missing column, and keys that are null, duplicate or of an invalid type.
        """
        self._check_rows(table.num_rows)
        others = self.columns if self.value is None else (self.value,)
        if others is None:
            others = tuple(name for name in table.column_names if name not in self.key)
        for name in (*self.key, *others):
            count = table.column_names.count(name)
            if count != 1:
                among = ", ".join(table.column_names)
                reason = f"found {count} columns '{name}', expected one among {among}"
                raise ReferenceLoadFailed(self.name, reason)
        keys = [*map(self._key, self.key, map(table.column, self.key), self._key_types)]
        _check_keys(self.name, self.key, keys)
        arrays = [_whole(table.column(name)) for name in others]
        values = pa.RecordBatch.from_arrays(arrays, names=list(others))
        loaded = LoadedTable(keys, values, single=self.value is not None)
        current = self.loaded
        if current is not None and current.has_rows:
            loaded.rows()
        return loaded

    def _key(self, name: str, column: "pa.ChunkedArray[Any]", kind: type | None) -> Column:
        found, expected = key_column(_whole(column)), KEY_TYPES
        if found is not None and kind is not None:
            expected = f"{kind.__name__}, its key_type"
            if _family_of(kind) is not _family_of_column(found.type):
                found = None
        if found is None:
            reason = f"key '{name}': found {column.type}, expected {expected}"
            raise ReferenceLoadFailed(self.name, reason)
        return found

    def use(self, loaded: LoadedTable) -> None:
        """Replace the current load; the owner thread calls it between chunks."""
        with self._lock:
            self.loaded, self._fitting = loaded, set()
            self._rows = loaded.rows() if loaded.has_rows else _Unmade(self, loaded)

    def made(self, loaded: LoadedTable | None) -> dict[Any, Any]:
        """Make the dictionary of a load, and keep it if the load is still current."""
        if loaded is None:
            raise ReferenceNotLoaded(self.name)
        with self._lock:
            rows = loaded.rows()
            if self.loaded is loaded:
                self._rows = rows
            return rows

    def _check_rows(self, count: int) -> None:
        if count > self.max_rows:
            reason = f"found more than max_rows={self.max_rows} rows. Raise it if memory allows"
            raise ReferenceLoadFailed(self.name, reason)

    def _current(self) -> LoadedTable:
        if self.loaded is None:
            raise ReferenceNotLoaded(self.name)
        return self.loaded

    def _check_type(self, key: Any) -> None:
        """Raise BoltError for a key that is missing because no row's can be of its type."""
        fitting = self._fitting
        kinds = tuple(map(type, key)) if isinstance(key, tuple) else type(key)
        if kinds in fitting:
            return
        columns = self._current().keys
        parts = (key,) if len(columns) == 1 else key
        if not isinstance(parts, tuple) or len(parts) != len(columns):
            message = f"found {key!r:.80}, expected a tuple of {', '.join(self.key)}"
            raise BoltError(f"reference '{self.name}', look-up: {message}")
        for name, part, column in zip(self.key, parts, columns, strict=True):
            found = _family_of(type(part))
            if found is not None and found != _family_of_column(column.type):
                raise BoltError(
                    f"reference '{self.name}', look-up: found {part!r:.80} of type "
                    f"{type(part).__name__}, expected {column.type}, the type of the key "
                    f"'{name}'. Convert it first"
                )
        fitting.add(kinds)

    def _comparable(self, batch: pa.RecordBatch, name: str, key: str, keys: Column) -> Column:
        if name not in batch.schema.names:
            raise BoltError(
                f"reference '{self.name}', join: found no column '{name}', expected one of "
                f"{', '.join(batch.schema.names)}"
            )
        column = batch.column(name)
        found = comparable(column, keys.type)
        if found is None:
            raise BoltError(
                f"reference '{self.name}', join on '{name}': found {column.type}, expected "
                f"{keys.type} of the key '{key}'. Cast it first"
            )
        return found

    def _check(self) -> None:
        def check(is_met: object, what: str, found: object, expected: str) -> None:
            if not is_met:
                place = f"reference '{self.place}'{what}"
                raise InvalidReference(f"{place}: found {found!r}, expected {expected}")

        is_place = self.place and (self.format not in _NAMED or _TABLE_NAME.fullmatch(self.place))
        suffixes = ", ".join(_FORMATS)
        expected = f"a path with one of the suffixes {suffixes} or with format=, or a table's name"
        check(is_place, "", self.place, expected)
        is_format = _FORMAT.fullmatch(self.format)
        check(is_format, ", format", self.format, "the name of one of Spark's formats")
        are_known = self.format != "iceberg" or self.properties.keys() <= {"catalog"}
        check(are_known, ", properties", [*self.properties], "'catalog'")
        is_key = self.key and all(self.key) and len(set(self.key)) == len(self.key)
        check(is_key, ", key", self.key, "one or more columns")
        kinds = [each for each in self._key_types if each]
        types = ", ".join(each.__name__ for each in kinds)
        are_types = len(kinds) in (0, len(self.key)) and all(map(_family_of, kinds))
        expected = f"one type for each of {', '.join(self.key)}: {KEY_TYPES}"
        check(are_types, ", key_type", types, expected)
        guesses = any(name.lower() == "inferschema" for name in self.properties)
        is_text = self.format != "csv" or guesses or {*kinds} <= {str}
        check(is_text, ", key_type", types, "str: a CSV file's columns are text")
        is_one = self.value is None or self.columns is None
        check(is_one, ", columns", self.columns, f"either columns= or value={self.value!r}")
        others = self.columns or ()
        are_others = len({*others, *self.key}) == len(others) + len(self.key)
        check(are_others, ", columns", self.columns, "each column once, and none of the key")
        check(self.max_rows >= 1, ", max_rows", self.max_rows, "a whole number >= 1")
        seconds = self.refresh_seconds
        check(seconds is None or seconds > 0, ", refresh_seconds", seconds, "a number > 0")


_FAMILIES = (str, bytes, Number, datetime, date)  # none equals a value of another


def _family_of(kind: type) -> type | None:
    return next((each for each in _FAMILIES if issubclass(kind, each)), None)


def _family_of_column(kind: pa.DataType) -> type:
    if kind in _TEXTS:
        return str
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return date if pa.types.is_date(kind) else datetime
    is_binary = kind in _BINARIES or pa.types.is_fixed_size_binary(kind)
    return bytes if is_binary else Number


class _Unmade(Mapping[Any, Any]):
    """Makes the dictionary of a load on the first use, or raises if there is no load."""

    def __init__(self, owner: Reference, loaded: LoadedTable | None) -> None:
        self._owner = owner
        self._loaded = loaded

    def __getitem__(self, key: Any) -> Any:
        return self._owner.made(self._loaded)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._owner.made(self._loaded))

    def __len__(self) -> int:
        return len(self._owner.made(self._loaded))


reference = Reference


def _unpacked(place: str) -> PurePosixPath:
    path = PurePosixPath(place)
    return path.with_suffix("") if path.suffix.lower() in _PACKED else path


def _format_of(place: str) -> str:
    return _FORMATS.get(_unpacked(place).suffix.lower(), "table")


def _name_of(place: str, format: str) -> str:  # noqa: A002 - as in Reference
    return place if format in _NAMED else _unpacked(place).stem or place
