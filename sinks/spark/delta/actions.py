"""What a Delta log says of files and of transactions, as the JSON of its protocol. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from sinks.files.data_file import DataFile


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """A file that is part of a table, as the log has it."""

    path: str  # as the log spells it: escaped, below the table's folder or absolute
    num_bytes: int
    partition: Mapping[str, str | None]
    statistics: str | None = None  # JSON
    has_deletions: bool = False  # a deletion vector says that some of its rows are gone

    @property
    def place(self) -> str:
        """The path itself, not escaped."""
        return unquote(self.path)


def active_of_scan(line: str) -> ActiveFile:
    """A row of Kernel's scan files, as JSON."""
    add = json.loads(line)["add"]
    return ActiveFile(
        path=add["path"],
        num_bytes=add["size"],
        partition=add.get("partitionValues", {}),
        statistics=add.get("stats"),
        has_deletions=add.get("deletionVector") is not None,
    )


def active_of_file(file: DataFile) -> ActiveFile:
    """A file that has been added."""
    return ActiveFile(
        path=_escaped(file.path),
        num_bytes=file.num_bytes,
        partition=file.partition,
        statistics=file.statistics.as_delta_json(),
    )


def actions(
    added: Sequence[DataFile],
    removed: Sequence[ActiveFile],
    versions: Mapping[str, int],
    now_ms: int,
    *,
    data_change: bool = True,
) -> str:
    """One commit's actions, a line each. No `data_change`: the same rows in other files."""
    lines: list[dict[str, Any]] = [{"remove": _remove(file, now_ms)} for file in removed]
    lines += [{"add": _add(file)} for file in added]
    for action in lines:
        for content in action.values():
            content["dataChange"] = data_change
    lines += [
        {"txn": {"appId": app, "version": version, "lastUpdated": now_ms}}
        for app, version in versions.items()
    ]
    return "\n".join(map(json.dumps, lines))


def _add(file: DataFile) -> dict[str, Any]:
    return {
        "path": _escaped(file.path),
        "partitionValues": file.partition,
        "size": file.num_bytes,
        "modificationTime": file.modified_ms,
        "stats": file.statistics.as_delta_json(),
    }


def _remove(file: ActiveFile, now_ms: int) -> dict[str, Any]:
    return {
        "path": file.path,
        "deletionTimestamp": now_ms,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition),
        "size": file.num_bytes,
    }


def _escaped(path: str) -> str:
    return quote(path, safe="/=-_.~")
