"""A manifest table with its sinks, and a reader of its log that is not ours."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sinks import ManifestSink
from sinks.storage import Storage
from topology.sink import Batch, SinkContext
from topology.transactional import Group, Share

LINE, OTHER = "orders[0]", "orders[1]"
SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})


class Table:
    """One table, its sinks, and what the files in its folder say."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self.path = warehouse / "orders"
        self.log = self.path / "_headrace"
        self.sinks: list[ManifestSink[Any]] = []

    def sink(
        self, schema: pa.Schema = SCHEMA, *, pipeline: str = "pipeline", **options: Any
    ) -> ManifestSink[Any]:
        """A new sink on the table, opened: another process's, as it were."""
        sink: ManifestSink[Any] = ManifestSink("orders", schema=schema, **options)
        self.sinks.append(sink)
        sink.open(self.context(pipeline))
        return sink

    def context(self, pipeline: str = "pipeline") -> SinkContext:
        return SinkContext(
            pipeline, "sink", {}, Storage(str(self.warehouse)), None, exactly_once=True
        )

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.log.glob("*.json"))]

    def versions(self) -> list[int]:
        return [entry["version"] for entry in self.entries()]

    def named(self) -> dict[str, dict[str, Any]]:
        """The files of the table, by what every entry changes; `whole` is not looked at."""
        files: dict[str, dict[str, Any]] = {}
        for entry in self.entries():
            for path in entry.get("remove", ()):
                files.pop(path, None)
            files |= {file["path"]: file for file in entry.get("add", ())}
        return files

    def rows(self) -> list[dict[str, Any]]:
        return [
            row | file.get("partition", {})
            for path, file in self.named().items()
            for row in pq.ParquetFile(self.path / path).read().to_pylist()
        ]

    def numbers(self) -> list[int]:
        return sorted(row["number"] for row in self.rows())

    def counted(self) -> Counter[int]:
        return Counter(self.numbers())

    def on_disk(self) -> set[str]:
        return {str(path.relative_to(self.path)) for path in self.path.rglob("*.parquet")}


def rows(*numbers: int, place: str | None = "x") -> list[dict[str, Any]]:
    return [{"number": number, "place": place} for number in numbers]


def write(sink: ManifestSink[Any], given: list[dict[str, Any]], sequence: int = 1) -> None:
    sink.write(Batch(sequence, [given], len(given)))


def group(txid: int, *numbers: int, epoch: int = 1, line: str = LINE) -> Group:
    share = Share(line, epoch, txid, 1, txid, txid + 1, "0" * 32, len(numbers))
    return Group(txid, (share,), [rows(*numbers)], len(numbers))
