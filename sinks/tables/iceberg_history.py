"""A table's old snapshots: what pyiceberg need not carry along, and what goes when they do."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

MARK = "headrace.transactions"  # in the summary of each of our snapshots
KEEP_MS, KEEP = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
_EXPIRED_AT_ONCE = 20


def newest(metadata: "TableMetadata") -> "TableMetadata":
    """The metadata without history, which pyiceberg copies a dozen times for a commit."""
    current = metadata.current_snapshot()
    history = {"snapshots": [current] if current else [], "snapshot_log": [], "metadata_log": []}
    return metadata.model_copy(update=history)


def expired_of(metadata: "TableMetadata", now_ms: int) -> list[int]:
    """Snapshots of ours to let go of: older than the table keeps them, followed by ours.

    What follows one of ours has all its files, but for manifests that were merged.
    """
    age = metadata.properties.get(KEEP_MS)
    if (
        age is None
        or [*metadata.refs] != ["main"]
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


def remove_expired(table: "Table", expired: Sequence[int]) -> None:
    """Remove what only expired snapshots name: lists of manifests, and manifests merged since."""
    for snapshot_id in expired:
        old = table.snapshot_by_id(snapshot_id)
        after = next(
            each for each in table.metadata.snapshots if each.parent_snapshot_id == snapshot_id
        )
        if old is not None:
            kept = {each.manifest_path for each in after.manifests(table.io)}
            for manifest in old.manifests(table.io):
                if manifest.manifest_path not in kept:
                    table.io.delete(manifest.manifest_path)
            table.io.delete(old.manifest_list)


def remove_merged(table: "Table", written: Sequence[str]) -> None:
    """Remove the manifests of a commit that it has merged into another one itself."""
    current = table.current_snapshot()
    if len(written) > 1 and current is not None:
        named = {each.manifest_path for each in current.manifests(table.io)}
        for path in written:
            if path not in named:
                table.io.delete(path)
