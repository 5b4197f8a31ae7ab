"""Few large files with the rows of many small ones."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.files.data_file import DataFileWriter
from sinks.files.layout import Layout
from sinks.manifest.durable import sync_below
from sinks.manifest.entry import Listed
from topology.errors import SinkFailed


def small_files(files: Iterable[Listed], target_bytes: int) -> list[list[Listed]]:
    """The files less than half as large as they should be, by partition; two or more each. Pure."""
    small: dict[object, list[Listed]] = defaultdict(list)
    for file in files:
        if 2 * file.bytes < target_bytes:
            small[_folder(file), tuple(file.partition.items())].append(file)
    return [each for each in small.values() if len(each) > 1]


def cut(files: Iterable[Listed], target_bytes: int) -> Iterator[list[Listed]]:
    """Runs of two files or more that make about the wanted size together. Pure."""
    run: list[Listed] = []
    size = 0
    for file in files:
        run.append(file)
        size += file.bytes
        if size >= target_bytes:
            yield run
            run, size = [], 0
    if len(run) > 1:
        yield run


def alike(root: Path, files: Iterable[Listed]) -> list[list[Listed]]:
    """The files that have the same columns, whatever their order. Raises SinkFailed."""
    found: dict[object, list[Listed]] = defaultdict(list)
    for file in files:
        with _opened(root, file) as opened:
            columns = frozenset((each.name, str(each.type)) for each in opened.schema_arrow)
        found[columns].append(file)
    return list(found.values())


def join(root: Path, files: Sequence[Listed]) -> Listed:
    """Write the rows of files of one partition and the same columns into a new one, durably.

    Raises SinkFailed when a file is missing or has other rows than the log says, and OSError;
    then no file is left.
    """
    writer = DataFileWriter(root, Layout())
    joined = writer.join(_tables(root, files), 0, _folder(files[0]), files[0].partition)
    if joined is None:
        raise SinkFailed(f"the files in {root / _folder(files[0])} have no rows")
    try:
        sync_below(root, [joined.path])
    except BaseException:
        writer.remove([joined])
        raise
    return Listed(joined.path, joined.num_rows, joined.num_bytes, joined.partition)


def _tables(root: Path, files: Sequence[Listed]) -> Iterator[pa.Table]:
    """The rows of all files in their order, with the columns as the first one has them."""
    schema: pa.Schema | None = None
    for file in files:
        with _opened(root, file) as opened:
            table = opened.read()
        if schema is None:
            schema = pa.schema([field.with_nullable(nullable=True) for field in table.schema])
        yield pa.Table.from_arrays(table.select(schema.names).columns, schema=schema)


@contextmanager
def _opened(root: Path, file: Listed) -> Iterator[pq.ParquetFile]:
    path = root / file.path
    try:
        with pq.ParquetFile(path) as opened:
            if opened.metadata.num_rows != file.rows:
                found = f"has {opened.metadata.num_rows} rows; the table's log says {file.rows}"
                raise SinkFailed(f"file {path} {found}")
            yield opened
    except (OSError, pa.ArrowInvalid) as error:
        named = f"file {path}, which the table's log names, cannot be read"
        raise SinkFailed(f"{named}: {error}") from error


def _folder(file: Listed) -> str:
    return file.path.rpartition("/")[0]
