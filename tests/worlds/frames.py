"""DataFrames without Spark: Arrow tables behind the few methods that Spark steps use."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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
    """Runs each job at once."""

    def __init__(self, session: Any = None) -> None:
        self.session = session or Session()
        self.groups: list[str] = []

    def run(
        self, job: Callable[[Any], Any], *, group: str, deadline_seconds: float | None = None
    ) -> Any:
        del deadline_seconds
        self.groups.append(group)
        return job(self.session)

    def passage(self, step: Any, sink: Any, context: SinkContext) -> Any:
        raise NotImplementedError
