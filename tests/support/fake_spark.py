"""DataFrames without Spark: Arrow tables behind the few methods that Spark steps use."""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from pyspark.errors import AnalysisException

from sinks.spark import delta_transaction, spark_sink
from sinks.spark.frames import spark_schema
from topology.sink import SinkContext

Each = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class Frame:
    """A table in some parts, each of which is one task's."""

    def __init__(self, table: pa.Table, parts: int = 2) -> None:
        self.table = table
        self.parts = parts

    @property
    def columns(self) -> list[str]:
        return self.table.schema.names

    def toArrow(self) -> pa.Table:  # noqa: N802 - PySpark's name
        return self.table

    def mapInArrow(self, function: Each, ddl: str) -> Any:  # noqa: N802
        (name, _kind) = ddl.split()
        length = max(1, -(-self.table.num_rows // self.parts))
        rows = []
        for start in range(0, self.table.num_rows, length):
            part = self.table.slice(start, length)
            for batch in function(iter(part.to_batches(max_chunksize=2))):
                rows += [(bytearray(value),) for value in batch[name].to_pylist()]
        return SimpleNamespace(collect=lambda: rows)


class Session:
    """What a job is given: it reads Parquet, as it was spooled."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []

    @property
    def read(self) -> Any:
        return SimpleNamespace(schema=lambda _schema: SimpleNamespace(parquet=self._parquet))

    def createDataFrame(self, rows: Sequence[Any], schema: Any) -> Frame:  # noqa: N802
        assert not rows
        return Frame(pa.table({name: pa.array([], pa.null()) for name in schema.names}))

    def _parquet(self, *uris: str) -> Frame:
        self.reads.append(list(uris))
        files = [re.sub("^file://", "", uri) for uri in uris]
        return Frame(pa.concat_tables([pq.ParquetFile(file).read() for file in files]))


class Driver:
    def __init__(self, session: Any = None) -> None:
        self.session = session or Session()
        self.groups: list[str] = []
        self.deadlines: list[float | None] = []

    def run(
        self, job: Callable[[Any], Any], *, group: str, deadline_seconds: float | None = None
    ) -> Any:
        self.groups.append(group)
        self.deadlines.append(deadline_seconds)
        return job(self.session)

    def passage(self, step: Any, sink: Any, context: SinkContext) -> Any:
        raise NotImplementedError


class FakeSpark(Driver):
    """Runs jobs of a SparkSink that writes Parquet or Delta on a local disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(_Session())
        fake = SimpleNamespace(**vars(delta_transaction))
        fake.DeltaTransaction, fake.alone = Transaction, _alone
        monkeypatch.setattr(spark_sink, "delta_transaction", fake)


class Transaction:
    """`sinks.spark.delta_transaction.DeltaTransaction`, by delta-rs."""

    def __init__(self, _session: Any, path: str, _options: Mapping[str, str]) -> None:
        self._path = _local(path)
        self._table = _table(self._path)

    @property
    def table_id(self) -> str | None:
        return None if self._table is None else str(self._table.metadata().id)

    @property
    def forgets(self) -> bool:
        return (
            self._table is not None
            and delta_transaction.RETENTION in self._table.metadata().configuration
        )

    def version(self, app: str) -> int:
        return 0 if self._table is None else self._table.transaction_version(app) or 0

    def commit(
        self, numbers: Mapping[str, int], rows: Any = None, partition_by: Sequence[str] = ()
    ) -> str:
        properties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(*each) for each in numbers.items()],
            max_commit_retries=0,
        )
        try:
            if rows is not None:
                deltalake.write_deltalake(
                    self._table or self._path,
                    rows.table,
                    mode="append",
                    partition_by=[*partition_by] or None,
                    commit_properties=properties,
                )
            elif self._table is not None:
                self._table.create_write_transaction(
                    [], "append", self._table.schema(), commit_properties=properties
                )
        except CommitFailedError as error:
            raise RuntimeError("ConcurrentTransactionException") from error
        found = _table(self._path)
        return str(found.metadata().id)


class _Absent(AnalysisException):
    def getCondition(self) -> str:  # noqa: N802 - PySpark's name
        return "PATH_NOT_FOUND"


class _Session(Session):
    @property
    def read(self) -> Any:
        reader = super().read
        reader.format = lambda kind: SimpleNamespace(load=lambda path: _load(kind, _local(path)))
        return reader

    def _parquet(self, *uris: str) -> Frame:
        return _Frame(super()._parquet(*uris).table)


class _Frame(Frame):
    def __init__(self, table: Any, files: Sequence[str] = ()) -> None:
        super().__init__(table)
        self.inputFiles = lambda: files

    @property
    def schema(self) -> Any:
        return spark_schema(self.table.schema)

    @property
    def write(self) -> "_Writer":
        return _Writer(self.table)


class _Writer:
    def __init__(self, table: Any) -> None:
        self._rows = table
        self._kind = ""
        self._partition_by: list[str] = []

    def format(self, kind: str) -> "_Writer":
        self._kind = kind
        return self

    def mode(self, mode: str) -> "_Writer":
        assert mode == "append"
        return self

    def partitionBy(self, *names: str) -> "_Writer":  # noqa: N802 - PySpark's name
        self._partition_by = [*names]
        return self

    def options(self, **_options: str) -> "_Writer":
        return self

    def save(self, path: str) -> None:
        if len({name.lower() for name in self._rows.column_names}) < self._rows.num_columns:
            raise AnalysisException(message="COLUMN_ALREADY_EXISTS")
        if self._kind == "delta":
            by = self._partition_by or None
            deltalake.write_deltalake(_local(path), self._rows, mode="append", partition_by=by)
        else:
            pq.write_to_dataset(
                self._rows,
                _local(path),
                partition_cols=self._partition_by,
                basename_template=f"{uuid.uuid4()}-{{i}}.parquet",
                existing_data_behavior="overwrite_or_ignore",
            )


def _load(kind: str, path: str) -> _Frame:
    if kind == "delta" and (table := _table(path)) is not None:
        return _Frame(pa.schema(table.schema()).empty_table(), table.file_uris())
    files = [str(each) for each in Path(path).rglob("*.parquet")]
    if kind == "delta" or not files:
        raise _Absent(message=path)
    return _Frame(pq.ParquetFile(files[0]).read(), files)


def _table(path: str) -> deltalake.DeltaTable | None:
    try:
        return deltalake.DeltaTable(path)
    except TableNotFoundError:
        return None


def _local(path: str) -> str:
    return path.removeprefix("file://")


@contextmanager
def _alone(_session: Any, _folder: Path) -> Iterator[None]:
    yield
