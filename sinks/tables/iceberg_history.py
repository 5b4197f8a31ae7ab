"""A table's old snapshots: what pyiceberg need not carry along, and what goes when they do."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from topology.errors import SinkFailed

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import AssertRefSnapshotId, TableUpdate

MARK = "headrace.transactions"  # in the summary of each of our snapshots
KEEP_MS, KEEP = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
TAG = "headrace-maintenance"  # names a snapshot while Spark maintains the table
MAINTAINED_SECONDS = 24 * 3600  # at most
_CLOCKS_DIFFER_MS = 60_000  # as much as Iceberg's Java library allows
_EXPIRED_AT_ONCE = 20


def expired_of(metadata: "TableMetadata", now_ms: int) -> list[int]:
    """Snapshots of ours to let go of: older than the table keeps them, followed by ours.

    What follows one of ours has all its files, but for manifests that were merged. None go while
    Spark maintains the table: it reads them all.
    """
    age = metadata.properties.get(KEEP_MS)
    if (
        age is None
        or [*metadata.refs.keys() - {TAG}] != ["main"]
        or _is_maintained(metadata, now_ms)
        or metadata.properties.get("gc.enabled") == "false"
    ):
        return []
    kept = int(metadata.properties.get(KEEP, "1"))
    snapshots = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
    followed = {
        each.parent_snapshot_id
        for each in snapshots
        if MARK in (each.summary.additional_properties if each.summary else ())
    }
    return [
        each.snapshot_id
        for each in snapshots[: max(0, len(snapshots) - kept)]
        if each.timestamp_ms < now_ms - int(age) and each.snapshot_id in followed
    ][:_EXPIRED_AT_ONCE]


def in_order(
    updates: "Sequence[TableUpdate]", metadata: "TableMetadata"
) -> "Iterator[TableUpdate]":
    """Date no snapshot before the table's last change, as a clock that is behind does.

    Iceberg's Java library reads no such table.
    """
    from pyiceberg.table.update import AddSnapshotUpdate  # noqa: PLC0415 - see sinks/__init__

    for each in updates:
        if isinstance(each, AddSnapshotUpdate):
            date = max(each.snapshot.timestamp_ms, metadata.last_updated_ms + 1)
            snapshot = each.snapshot.model_copy(update={"timestamp_ms": date})
            yield each.model_copy(update={"snapshot": snapshot})
        else:
            yield each


def check_in_order(table: "Table") -> None:
    """Raise SinkFailed where pyiceberg would date a change that is no snapshot before the last."""
    last_ms = table.metadata.last_updated_ms
    if last_ms > time.time() * 1000 + _CLOCKS_DIFFER_MS:
        last = datetime.fromtimestamp(last_ms / 1000, UTC)
        raise SinkFailed(
            f"table '{'.'.join(table.name())}' was last changed at {last:%Y-%m-%d %H:%M:%S} UTC, "
            "which is yet to come by this host's clock; Iceberg's Java library reads no table "
            "whose changes are not in order. Set the clock right, or wait"
        )


def _is_maintained(metadata: "TableMetadata", now_ms: int) -> bool:
    """Whether Spark maintains the table, or a process that had it do so was killed lately."""
    tag = metadata.refs.get(TAG)
    tagged = metadata.snapshot_by_id(tag.snapshot_id) if tag else None
    return tagged is not None and tagged.timestamp_ms > now_ms - MAINTAINED_SECONDS * 1000


def untagged(metadata: "TableMetadata") -> "AssertRefSnapshotId":
    """Require of a commit that Spark has not begun to maintain the table since."""
    from pyiceberg.table.update import AssertRefSnapshotId  # noqa: PLC0415 - see sinks/__init__

    tag = metadata.refs.get(TAG)
    return AssertRefSnapshotId.model_validate(
        {"ref": TAG, "snapshot-id": None if tag is None else tag.snapshot_id}
    )


def removals(snapshots: Sequence[int]) -> "tuple[TableUpdate, ...]":
    """The updates of a commit that remove snapshots."""
    from pyiceberg.table.update import RemoveSnapshotsUpdate  # noqa: PLC0415 - see sinks/__init__

    return tuple(
        RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [each]}) for each in snapshots
    )


def remove_old(
    before: "Table", after: "Table", expired: Sequence[int], written: Sequence[str]
) -> None:
    """Remove the metadata that a commit has left unnamed: what stays is found as an orphan."""
    with suppress(Exception):
        _remove_expired(before, expired)
        _remove_merged(after, written)
        after.catalog._delete_old_metadata(before.io, before.metadata, after.metadata)  # noqa: SLF001


def _remove_expired(table: "Table", expired: Sequence[int]) -> None:
    """Remove what only expired snapshots of ours name: lists of manifests, and merged manifests.

    Their data files are also those of the next snapshot. Older snapshots that stay, as others
    follow them, may name the same manifests.
    """
    gone = [each for each in table.metadata.snapshots if each.snapshot_id in expired]
    last = max((each.sequence_number or 0 for each in gone), default=0)
    near = [
        each
        for each in table.metadata.snapshots
        if each not in gone
        and (each.parent_snapshot_id in expired or (each.sequence_number or 0) < last)
    ]
    for path in only_named_by(gone, near, table.io, with_data=False):
        table.io.delete(path)


def only_named_by(
    gone: "Sequence[Snapshot]", kept: "Sequence[Snapshot]", io: "FileIO", *, with_data: bool
) -> list[str]:
    """The files that snapshots in `gone` name, and none in `kept`.

    Raises FileNotFoundError when one in `kept` names what is not there.
    """
    theirs: dict[str, ManifestFile] = {}
    for snapshot in gone:
        with suppress(FileNotFoundError):  # another one has begun to remove it
            theirs |= {each.manifest_path: each for each in snapshot.manifests(io)}
    stay = {each.manifest_path: each for snapshot in kept for each in snapshot.manifests(io)}
    for path in stay:
        theirs.pop(path, None)
    files = set[str]()
    if with_data:
        for manifest in theirs.values():
            with suppress(FileNotFoundError):
                files |= _files(manifest, io)
        for manifest in stay.values():
            if not files:
                break
            files -= _files(manifest, io)
    return [*files, *theirs, *(each.manifest_list for each in gone)]


def _files(manifest: "ManifestFile", io: "FileIO") -> set[str]:
    """The data and delete files that are part of the table by this manifest."""
    return {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}


def _remove_merged(table: "Table", written: Sequence[str]) -> None:
    """Remove the manifests of a commit that it has merged into another one itself."""
    current = table.current_snapshot()
    if len(written) > 1 and current is not None:
        named = {each.manifest_path for each in current.manifests(table.io)}
        for path in written:
            if path not in named:
                table.io.delete(path)
