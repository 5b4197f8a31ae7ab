"""What delta-rs does to keep a Delta table small and fast, and what it would do."""

import re
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from topology.errors import SinkFailed
from topology.sink import Removal

_FILE_RETENTION = "delta.deletedFileRetentionDuration"
_LOG_RETENTION, _LOG_KEPT = "delta.logRetentionDuration", "interval 30 days"
_INTERVAL = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?")  # as delta-rs reads it
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_FILE = re.compile(r"(\d{20})\.(json|checkpoint\..*parquet)")


def small_files(table: Any, target_bytes: int) -> dict[Any, list[int]]:
    """The sizes of the files below a size, by partition."""
    found: dict[Any, list[int]] = {}
    for add in pa.table(table.get_add_actions()).to_pylist():
        if add["size_bytes"] < target_bytes:
            partition = tuple((add.get("partition") or {}).values())
            found.setdefault(partition, []).append(add["size_bytes"])
    return found


def vacuum(table: Any, older_than_hours: int, properties: Any, *, dry_run: bool) -> Removal:
    """Remove files that the log does not name. A longer time that the table itself sets counts.

    delta-rs commits that it begins before it removes a file, so what was decided before that is
    no longer committed. It does not know the files of deletion vectors. Raises SinkFailed.
    """
    if "deletionVectors" in (table.protocol().writer_features or ()):
        raise SinkFailed(
            "found the feature deletionVectors, whose files delta-rs would remove; "
            "take VACUUM in Spark"
        )
    removed = table.vacuum(
        older_than_hours,
        dry_run=dry_run,
        enforce_retention_duration=_FILE_RETENTION in table.metadata().configuration,
        commit_properties=properties,
        full=True,  # also those that no entry has ever named
    )
    return Removal(0, sum(path != "" for path in removed))  # that is the marker of the folder


def expirable(table: Any, log_files: Sequence[fs.FileInfo]) -> int:
    """How many entries of the log would go once the newest version has a checkpoint.

    Those before the last checkpoint that is no newer than the first version to keep.
    """
    found = _INTERVAL.fullmatch(table.metadata().configuration.get(_LOG_RETENTION, _LOG_KEPT))
    age = int(found[1]) * _SECONDS[found[2]] if found else 30 * _SECONDS["day"]
    newest: int = table.version()
    keep, checkpoints, versions = newest, {newest}, entries_among(log_files)
    for file in log_files:
        if name := _FILE.fullmatch(file.base_name):
            if name[2] != "json":
                checkpoints.add(int(name[1]))
            if (file.mtime_ns or 0) >= (time.time() - age) * 1e9:
                keep = min(keep, int(name[1]))
    last = max((each for each in checkpoints if each <= keep), default=0)
    return sum(version < last for version in versions)


def entries_among(log_files: Sequence[fs.FileInfo]) -> set[int]:
    """The versions that have an entry of their own."""
    names = [_FILE.fullmatch(file.base_name) for file in log_files]
    return {int(name[1]) for name in names if name is not None and name[2] == "json"}
