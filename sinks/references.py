"""Reference tables, read into Arrow: by Spark only what nothing else reads as Spark does."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime
from fnmatch import translate
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyarrow import fs

from sinks.columns import with_leaves
from sinks.probe import plain_message
from sinks.spark.frames import read_by_spark
from sinks.storage import Storage
from sinks.tables.iceberg import open_log
from topology.errors import ReferenceLoadFailed, SinkFailed
from topology.masking import mask, secrets_in
from topology.reference import Reference
from topology.sink import SparkJobs

Rows: TypeAlias = Iterator[tuple[int, pa.Table]]  # with the number of their file
Source: TypeAlias = tuple[pa.Schema, Callable[[pa.Schema], Rows]]  # the columns, and some of them

_AT_ONCE = 8  # footers of Parquet files; on a store each is a round trip
_BLOCK_ROWS = 10_000  # of text, whose Python objects take much more room than Arrow's columns
_GLOB = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?P<exponent>[eE][+-]?\d+)?[fFdD]?|NaN|Infinity)", re.ASCII
)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d)?)?", re.ASCII)
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


def read_reference(reference: Reference, storage: Storage, spark: SparkJobs | None) -> pa.Table:
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
    """Read by delta-rs's own engine: `to_pyarrow_dataset` knows no renamed columns."""
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


@dataclass(frozen=True, slots=True)
class File:
    """A file of a table, with the columns in its folders' names: `day=2024-01-01`."""

    path: str
    partition: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one table, in the order of their names."""

    filesystem: fs.FileSystem
    files: Sequence[File]

    def lines(self, file: File, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
        """Yield the numbered lines of a file, unpacked, without blank ones."""
        stream: Any = self.filesystem.open_input_stream(file.path, compression="detect")
        encoding = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
        with io.TextIOWrapper(stream, encoding) as text:
            for number, line in enumerate(text, 1):
                if line.strip():
                    yield number, line.removesuffix("\n")


def files_at(storage: Storage, place: str) -> Files:
    """Find a table's files: one, those in a folder, or of its partitions; globs may match more.

    Hidden files are left out, and so are folders that are no partitions. Raises OSError,
    ValueError, SinkFailed.
    """
    filesystem, path = storage.filesystem(storage.uri(place))
    roots = sorted({each for one in _without_braces(path) for each in _matching(filesystem, one)})
    if not roots:
        raise FileNotFoundError(f"{path} does not exist")
    found = [file for root in roots for file in _below(filesystem, root)]
    if not found:
        raise FileNotFoundError(f"there are no files in {path}")
    columns = sorted({"/".join(file.partition) or "none" for file in found})
    if len(columns) > 1:
        raise ValueError(f"{path} has different partition columns: {', '.join(columns)}")
    return Files(filesystem, found)


def columns_of(source: Source, files: Files) -> pa.Schema:
    """Return the files' columns, then those of the folders' names, which hide the files' own."""
    partitions = {name: values.type for name, values in _partitions(files.files).items()}
    return pa.schema({field.name: field.type for field in source[0]} | partitions)


def read_columns(source: Source, files: Files, wanted: pa.Schema, limit: int) -> pa.Table:
    """Read some of the columns, and at most `limit` rows. Raises OSError, ValueError."""
    stored, read = source
    partitions = _partitions(files.files)
    inner = pa.schema([field for field in wanted if field.name not in partitions])
    found, num_rows = [wanted.empty_table()], 0
    # Some column is read in any case, as it tells how many rows there are.
    for number, rows in read(inner if inner.names else pa.schema([stored.field(0)])):
        columns = [
            pa.repeat(partitions[name][number], len(rows)) if name in partitions else rows[name]
            for name in wanted.names
        ]
        found.append(pa.table(columns, schema=wanted))
        num_rows += len(rows)
        if num_rows >= limit:
            break
    return pa.concat_tables(found).slice(0, limit)


def parquet(files: Files, limit: int) -> Source:
    """Parquet files: the first says which columns there are, others may spell them differently."""
    import pyarrow.dataset as ds  # noqa: PLC0415 - takes a moment, and not every pipeline needs it

    options: Any = ds.ParquetReadOptions  # the stubs know only half of it
    form = ds.ParquetFileFormat(options(coerce_int96_timestamp_unit="us"))
    fragments: list[Any] = [form.make_fragment(file.path, files.filesystem) for file in files.files]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda fragment: fragment.ensure_complete_metadata(), fragments))

    def read(wanted: pa.Schema) -> Rows:
        for number, fragment in enumerate(fragments):
            names = fragment.physical_schema.names
            alike = {name.lower(): name for name in names} | {name: name for name in names}
            there = {
                name: ds.field(found)
                for name in wanted.names
                if (found := alike.get(name) or alike.get(name.lower()))
            }
            rows = fragment.head(limit, columns=there or names[:1])
            columns = [
                rows[field.name].cast(field.type)
                if field.name in there
                else pa.nulls(len(rows), field.type)
                for field in wanted
            ]
            yield number, pa.table(columns, schema=wanted)

    leaves = fragments[0].metadata.schema
    kinds = (leaves.column(place).physical_type for place in range(len(leaves)))
    return spark_schema(fragments[0].physical_schema, kinds), read


@dataclass(frozen=True)
class Csv:
    """The format of CSV files, by Spark's options. Values are text."""

    header: bool
    sep: str
    quote: str
    escape: str
    null: str
    encoding: str

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "Csv | None":
        """Parse the options; None when only Spark can do as they say."""
        given = {name.lower(): value for name, value in properties.items()}
        # A file's first line names its columns. Types are not guessed: 501 is not "00501".
        found = cls(
            header=given.pop("header", "true").lower() == "true",
            sep=given.pop("sep", given.pop("delimiter", ",")),
            quote=given.pop("quote", '"'),
            escape=given.pop("escape", "\\"),
            null=given.pop("nullvalue", ""),
            encoding=given.pop("encoding", "utf-8"),
        )
        is_short = len(found.sep) == len(found.escape) == 1 and len(found.quote) <= 1
        return found if is_short and not given else None

    def source(self, files: Files) -> Source:
        names: list[str] = []
        for file in files.files:
            first = next(self._rows(files, file), None)
            if first is not None:
                names = names or self._names(first)
                if self.header and self._names(first) != names:
                    raise ValueError(
                        f"{file.path} has the columns {', '.join(self._names(first))}, expected "
                        f"those of other files of the table: {', '.join(names)}"
                    )

        def read(wanted: pa.Schema) -> Rows:
            places = [names.index(name) for name in wanted.names]
            for number, file in enumerate(files.files):
                rows = islice(self._rows(files, file), 1 if self.header else 0, None)
                while block := list(islice(rows, _BLOCK_ROWS)):
                    columns = [
                        [
                            row[at] if at < len(row) and row[at] != self.null else None
                            for row in block
                        ]
                        for at in places
                    ]
                    yield number, pa.table(columns, schema=wanted)

        return pa.schema([(name, pa.string()) for name in names]), read

    def fields(self, line: str) -> list[str | None]:
        """The values of a line; None where there is nothing, not even quotes.

        Raises ValueError where Spark would guess what the quotes mean.
        """
        if not self.quote or self.quote not in line:
            return [value or None for value in line.split(self.sep)]
        found: list[str | None] = []
        place, sep = 0, self.sep
        while sep:
            match = self._field.match(line, place)
            if match is None:
                raise ValueError(
                    f"a value's quotes do not end with it, or not in this line, expected "
                    f"{self.escape}{self.quote} for quotes in quotes, or what escape= says"
                )
            quoted, plain, sep = match.groups()
            found.append((plain or None) if quoted is None else self._escaped.sub(r"\1", quoted))
            place = match.end()
        return found

    @cached_property
    def _field(self) -> re.Pattern[str]:
        sep, quote, escape = map(re.escape, (self.sep, self.quote, self.escape))
        pair = f"{quote}{quote}" if self.escape == self.quote else f"{escape}."
        quoted = f"{quote}((?:[^{quote}{escape}]|{pair})*){quote}[\0- ]*"
        return re.compile(f"(?:{quoted}|((?!{quote})[^{sep}]*))({sep}|\\Z)", re.DOTALL)

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        quote, escape = re.escape(self.quote), re.escape(self.escape)
        return re.compile(f"{escape}([{quote}{escape}])")

    def _rows(self, files: Files, file: File) -> Iterator[list[str | None]]:
        for number, line in files.lines(file, self.encoding):
            try:
                yield self.fields(line)
            except ValueError as error:
                raise ValueError(f"{file.path}, line {number}: {error}") from error

    def _names(self, first: Sequence[str | None]) -> list[str]:
        """The columns' names: what is missing, or there twice, gets its place's number."""
        if not self.header:
            return [f"_c{place}" for place in range(len(first))]
        lower = [(name or "").lower() for name in first]
        return [
            f"_c{place}"
            if not name or name == self.null
            else f"{name}{place}"
            if lower.count(name.lower()) > 1
            else name
            for place, name in enumerate(first)
        ]


def json(files: Files, limit: int) -> Source:
    """JSON files: an object, or an array of them, on each line. Columns stand by their names."""

    def blocks() -> Iterator[tuple[int, list[dict[str, Any]]]]:
        num_rows = 0
        for number, file in enumerate(files.files):
            rows = _objects(files, file)
            while num_rows < limit and (block := list(islice(rows, _BLOCK_ROWS))):
                num_rows += len(block)
                yield number, block

    infer: Any = pa.infer_type
    schemas = [pa.schema([*infer(block)]) for _, block in blocks()]
    whole = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])

    def read(wanted: pa.Schema) -> Rows:
        for number, block in blocks():
            columns = [_column(block, field) for field in wanted]
            yield number, pa.table(columns, schema=wanted)

    return pa.schema(_as_inferred(whole)), read


def spark_schema(schema: pa.Schema, leaves: Iterable[str] = ()) -> pa.Schema:
    """The columns in the types that Spark has for them.

    `leaves` are Parquet's physical types, of all that is not nested, in order.
    """
    physical = iter(leaves)
    return pa.schema([(field.name, _spark_type(field.type, physical)) for field in schema])


def _spark_type(kind: Any, leaves: Iterator[str]) -> Any:
    def leaf(kind: Any) -> Any:
        if isinstance(kind, pa.BaseExtensionType):
            return _spark_type(kind.storage_type, leaves)
        return _spark_leaf(kind, next(leaves, ""))

    return with_leaves(kind, leaf, with_nulls=True)


def _spark_leaf(kind: Any, physical: str) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz or physical == "INT96" else None)
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.int64() if types.is_duration(kind) else _SPARK_TYPES.get(kind, kind)


_SPARK_TYPES: Mapping[pa.DataType, pa.DataType] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.date64(): pa.date32(),
    pa.null(): pa.int32(),
}


def _objects(files: Files, file: File) -> Iterator[dict[str, Any]]:
    for number, line in files.lines(file):
        try:
            found = msgspec.json.decode(line, type=dict[str, Any] | list[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise ValueError(f"{file.path}, line {number}: {error}") from error
        yield from found if isinstance(found, list) else [found]


def _as_inferred(fields: Iterable["pa.Field[Any]"]) -> list["pa.Field[Any]"]:
    """Fields by name, without those in which nothing is; what is always null is text."""
    found = ((field.name, _known(field.type)) for field in fields)
    return [pa.field(name, kind) for name, kind in sorted(found) if kind is not None]


def _known(kind: Any) -> pa.DataType | None:
    if pa.types.is_struct(kind):
        fields = _as_inferred(kind)
        return pa.struct(fields) if fields else None
    if pa.types.is_list(kind):
        inner = _known(kind.value_type)
        return None if inner is None else pa.list_(pa.field("element", inner))
    return pa.string() if pa.types.is_null(kind) else kind


def _column(block: list[dict[str, Any]], field: "pa.Field[Any]") -> "pa.Array[Any]":
    values: list[Any] = [row.get(field.name) for row in block]
    make: Callable[..., pa.Array[Any]] = pa.array
    try:
        return make(values, field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"column '{field.name}' is {field.type}, and once not: {error}") from error


def _without_braces(path: str) -> list[str]:
    """The paths that a glob with {this,that} stands for."""
    found = _BRACES.search(path)
    if found is None:
        return [path]
    words = found[1].split(",")
    return [
        each
        for word in words
        for each in _without_braces(path[: found.start()] + word + path[found.end() :])
    ]


def _matching(filesystem: fs.FileSystem, path: str) -> list[str]:
    """The files and folders that are there and match a glob, or are named."""
    first, *segments = path.split("/")
    found = [first]
    for place, segment in enumerate(segments):
        if not _GLOB.search(segment):
            found = [f"{folder}/{segment}" for folder in found]
            continue
        name = re.compile(translate(segment.replace("[^", "[!")))
        is_last = place == len(segments) - 1
        found = [
            each.path
            for folder in found
            for each in filesystem.get_file_info(
                fs.FileSelector(folder or "/", allow_not_found=True)
            )
            if name.match(each.base_name) and (is_last or each.type == fs.FileType.Directory)
        ]
    return [
        each.path for each in filesystem.get_file_info(found) if each.type != fs.FileType.NotFound
    ]


def _below(filesystem: fs.FileSystem, root: str) -> list[File]:
    """The files of a folder or, where it has partitions, those of them; or the file itself."""
    there = filesystem.get_file_info(root)
    if there.type == fs.FileType.File:
        return [] if _is_hidden(there.base_name) else [File(root, {})]
    inner = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    files: list[list[File]] = [[], [], []]  # beside the folders, in partitions, in other folders
    for each in sorted(inner, key=lambda info: info.path):
        names = each.path[len(root) :].strip("/").split("/")
        if each.type != fs.FileType.File or not each.size or any(map(_is_hidden, names)):
            continue
        pairs = [name.split("=", 1) for name in names[:-1] if "=" in name]
        file = File(each.path, {unquote(name): unquote(value) for name, value in pairs})
        files[1 if pairs else 0 if len(names) == 1 else 2].append(file)
    plain, partitioned, others = files
    if partitioned and others:
        raise ValueError(f"{others[0].path} is in no partition, and {partitioned[0].path} is")
    return partitioned or plain


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _partitions(files: Sequence[File]) -> dict[str, "pa.Array[Any]"]:
    return {name: _values([file.partition[name] for file in files]) for name in files[0].partition}


def _values(texts: Sequence[str]) -> "pa.Array[Any]":
    """Parse texts as Spark does: as numbers, dates or timestamps if all of them are."""
    given = [text for text in texts if text != _NO_VALUE]
    numbers = [_NUMBER.fullmatch(text) for text in given]
    kind: pa.DataType = pa.string() if given else pa.null()
    read: Callable[[str], Any] = str
    if given and all(map(_WHOLE.fullmatch, given)):
        largest = max(abs(int(text)) for text in given)
        kind = next(
            (kind for kind in (pa.int32(), pa.int64()) if largest >> kind.bit_width - 1 == 0),
            pa.decimal128(len(str(largest)), 0),
        )
        read = int
    elif given and all(numbers):
        if any(number and number["exponent"] for number in numbers):
            raise ValueError(f"found a folder of '{given[0]}', expected numbers without exponents")
        kind, read = pa.float64(), lambda text: float(text.rstrip("fFdD"))
    elif given and all(map(_is_moment, given)):
        has_time = any(" " in text for text in given)
        kind = pa.timestamp("us", "UTC") if has_time else pa.date32()
        read = datetime.fromisoformat if has_time else date.fromisoformat
    return pa.array([None if text == _NO_VALUE else read(text) for text in texts], kind)


def _is_moment(text: str) -> bool:
    try:
        return bool(_MOMENT.fullmatch(text) and datetime.fromisoformat(text))
    except ValueError:
        return False
