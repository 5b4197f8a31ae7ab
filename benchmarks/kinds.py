"""The kinds of table that the variants fill: how one is created, and which files hold its rows.

The files are those that the table's own log names, so what was written but not committed is in
no count. A table's log holds few commits here, and nothing that rewrites it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.order_table import PRICED
from sinks.spark.driver import SparkDriver

_ICEBERG_PROPERTIES = "'write.parquet.compression-codec' = 'snappy'"  # as Spark's Parquet has it


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of table. A table's path is in a folder that nobody else uses.

    `create` makes one, with no rows, in a session with the jars; `start` starts a query of
    Structured Streaming that writes into it, where that can; `files` are those with the rows.
    """

    jars: tuple[str, ...]
    create: Callable[[Any, Path], None]
    start: Callable[[Any, Path], Any]
    files: Callable[[SparkDriver, Path], list[Path]]


def _columns() -> str:
    from sinks.spark.existing import spark_schema  # noqa: PLC0415 - see sinks/__init__

    fields = spark_schema(PRICED).fields
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)


def _nothing(_session: Any, _path: Path) -> None:
    """What such a table needs, whoever writes it first makes."""


def _create_delta(session: Any, path: Path) -> None:
    session.sql(f"CREATE TABLE delta.`{path}` ({_columns()}) USING delta")


def delta_files(path: Path) -> list[Path]:
    """Those that the log has added and not removed. The table must have no deletion vectors."""
    names: dict[str, None] = {}
    for commit in sorted((path / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                names[unquote(action["add"]["path"])] = None
            if "remove" in action:
                names.pop(unquote(action["remove"]["path"]), None)
    return [path / name for name in names]


def _iceberg_table(path: Path) -> str:
    """The table's name in a catalogue of its folder, which is made where it is not known yet."""
    return f"{_catalogue(path)}.`{path.name}`"


def _catalogue(path: Path) -> str:
    return path.parent.name.replace("-", "_")


def _create_iceberg(session: Any, path: Path) -> None:
    catalogue = f"spark.sql.catalog.{_catalogue(path)}"
    session.conf.set(catalogue, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{catalogue}.type", "hadoop")
    session.conf.set(f"{catalogue}.warehouse", str(path.parent))
    session.conf.set(f"{catalogue}.cache-enabled", "false")  # others commit, too
    session.sql(
        f"CREATE TABLE {_iceberg_table(path)} ({_columns()}) USING iceberg "
        f"TBLPROPERTIES ({_ICEBERG_PROPERTIES})"
    )


def _iceberg_files(spark: SparkDriver, path: Path) -> list[Path]:
    def read(session: Any) -> list[str]:
        files = session.table(f"{_iceberg_table(path)}.files").select("file_path").collect()
        return [row.file_path for row in files]

    return [_local(name) for name in spark.run(read, group="files")]


def _catalogued_files(_spark: SparkDriver, path: Path) -> list[Path]:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra

    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{path.parent}/iceberg.db")
    files = catalog.load_table(("default", path.name)).scan().plan_files()
    return [_local(each.file.file_path) for each in files]


def parquet_files(path: Path) -> list[Path]:
    """Those that Structured Streaming's log names, else all that are in the folder."""
    log = path / "_spark_metadata"
    if not log.exists():
        return sorted(path.glob("*.parquet"))
    names: dict[str, None] = {}
    for entry in log.iterdir():
        if not entry.name[0].isdigit():
            continue
        _version, *lines = entry.read_text(encoding="utf-8").splitlines()
        names |= {json.loads(line)["path"]: None for line in lines}  # it deletes nothing
    return [_local(name) for name in names]


def _local(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


DELTA = Kind(
    jars=("delta",),
    create=_create_delta,
    start=lambda writer, path: writer.format("delta").start(str(path)),
    files=lambda _spark, path: delta_files(path),
)
ICEBERG = Kind(
    jars=("iceberg",),
    create=_create_iceberg,
    start=lambda writer, path: writer.format("iceberg").toTable(_iceberg_table(path)),
    files=_iceberg_files,
)
CATALOGUED = Kind(  # ours makes it
    jars=(),
    create=_nothing,
    start=_nothing,
    files=_catalogued_files,
)
PARQUET = Kind(
    jars=(),
    create=_nothing,
    start=lambda writer, path: writer.format("parquet").start(str(path)),
    files=lambda _spark, path: parquet_files(path),
)
