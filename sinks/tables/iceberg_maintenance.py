"""Maintenance of Iceberg tables: old snapshots and their files, Spark's procedures, the probe."""

import importlib.util
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import ManageSnapshots

from sinks.names import backticked
from sinks.tables.iceberg_files import CatalogStorage
from sinks.tables.log import Conflict
from topology.errors import SinkFailed, missing_extra
from topology.sink import Compaction, Removal, SparkJobs

Result = TypeVar("Result")
MARK = "headrace.transactions"  # in the summary of each of our snapshots
KEEP_MS, KEEP = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
TAG = "headrace-maintenance"  # names a snapshot while Spark maintains the table
MAINTAINED_SECONDS = 24 * 3600  # at most
_CLOCKS_DIFFER_MS = 60_000  # as much as Iceberg's Java library allows
_EXPIRED_AT_ONCE = 20
_AGE_MS = 5 * 86_400_000  # Iceberg's own default
_TRIES = 50
_PROBED = "headrace.checked-at"
_PROBE_SCHEMA = pa.schema([("probe", pa.int64())])


def expirable(metadata: TableMetadata, now_ms: int) -> list[int]:
    """Return our snapshots to remove with a commit: the table does not keep them, ours follow.

    A snapshot that follows ours has all its files, but for manifests that were merged. None is
    removed while Spark maintains the table: it reads them all.
    """
    main = {name: ref for name, ref in metadata.refs.items() if name != TAG}
    if (
        KEEP_MS not in metadata.properties
        or [*main] != ["main"]
        or _is_maintained(metadata, now_ms)
        or metadata.properties.get("gc.enabled") == "false"
    ):
        return []
    unkept = _expired_snapshots(metadata.model_copy(update={"refs": main}), now_ms)
    followed = {
        each.parent_snapshot_id
        for each in (metadata.snapshots if unkept else ())
        if MARK in (each.summary.additional_properties if each.summary else ())
    }
    return [each.snapshot_id for each in unkept if each.snapshot_id in followed][:_EXPIRED_AT_ONCE]


def _is_maintained(metadata: TableMetadata, now_ms: int) -> bool:
    """Whether Spark maintains the table, or may: the process that asked it was killed lately."""
    tag = metadata.refs.get(TAG)
    tagged = metadata.snapshot_by_id(tag.snapshot_id) if tag else None
    return tagged is not None and tagged.timestamp_ms > now_ms - MAINTAINED_SECONDS * 1000


def untagged(metadata: TableMetadata) -> AssertRefSnapshotId:
    """Require of a commit that Spark has not begun to maintain the table since."""
    tag = metadata.refs.get(TAG)
    return _is_at(TAG, None if tag is None else tag.snapshot_id)


def _is_at(ref: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": snapshot_id})


def removals(snapshots: Sequence[int]) -> tuple[TableUpdate, ...]:
    return tuple(
        RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [each]}) for each in snapshots
    )


def check_in_order(table: Table) -> None:
    """Raise SinkFailed where pyiceberg would date a change that is no snapshot before the last."""
    last_ms = table.metadata.last_updated_ms
    if last_ms > time.time() * 1000 + _CLOCKS_DIFFER_MS:
        last = datetime.fromtimestamp(last_ms / 1000, UTC)
        raise SinkFailed(
            f"table '{'.'.join(table.name())}' was last changed at {last:%Y-%m-%d %H:%M:%S} UTC, "
            "which is yet to come by this host's clock; Iceberg's Java library reads no table "
            "whose changes are not in order. Set the clock right, or wait"
        )


def remove_old(before: Table, after: Table, expired: Sequence[int], written: Sequence[str]) -> None:
    """Remove the metadata that a commit has left unnamed; a failure leaves orphans."""
    with suppress(Exception):
        _remove_expired(before, expired)
        current = after.current_snapshot()
        if len(written) > 1 and current is not None:  # some were merged into another one
            named = {each.manifest_path for each in current.manifests(after.io)}
            for path in written:
                if path not in named:
                    after.io.delete(path)
        delete_old = after.catalog._delete_old_metadata  # noqa: SLF001
        delete_old(before.io, before.metadata, after.metadata)


def _remove_expired(table: Table, expired: Sequence[int]) -> None:
    """Remove manifests and their lists that only expired snapshots of ours name.

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
    for path in _only_named_by(gone, near, table.io, with_data=False):
        table.io.delete(path)


def _only_named_by(
    gone: Sequence[Snapshot], kept: Sequence[Snapshot], io: FileIO, *, with_data: bool
) -> list[str]:
    """Return the files that snapshots in `gone` name, and none in `kept`.

    Raises FileNotFoundError when one in `kept` names a missing file.
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


def _files(manifest: ManifestFile, io: FileIO) -> set[str]:
    return {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}


def expire(table: Table, catalog: Catalog, sync: Callable[[], object], *, dry_run: bool) -> Removal:
    """Remove the snapshots that nothing keeps, and the files that they alone name.

    First a commit removes the snapshots, and `sync` is called. Then the files are removed: if this
    process ends in between, nothing names the files that are left. Raises Conflict, SinkFailed.
    """
    if table.properties.get("gc.enabled", "true").lower() == "false":
        raise SinkFailed(f"table {'.'.join(table.name())} has gc.enabled = false")
    before = table.metadata
    gone = _expired_snapshots(before, int(time.time() * 1000))
    if not gone:
        return Removal(0, 0)
    after = before
    if not dry_run:
        after = _without(table, catalog, [each.snapshot_id for each in gone])
        sync()
    kept = [each for each in after.snapshots if each not in gone]
    files = _only_named_by(gone, kept, table.io, with_data=True)
    files += _statistics(before) - _statistics(after)
    for file in () if dry_run else files:
        with suppress(FileNotFoundError):
            table.io.delete(file)
    return Removal(len(gone), len(files))


def _without(table: Table, catalog: Catalog, snapshots: Sequence[int]) -> TableMetadata:
    """Commit the removal of snapshots, unless a branch or tag has moved. Raises Conflict."""
    check_in_order(table)
    unmoved = [_is_at(name, ref.snapshot_id) for name, ref in table.metadata.refs.items()]
    same = AssertTableUUID(uuid=table.metadata.table_uuid)
    try:
        return catalog.commit_table(table, (same, *unmoved), removals(snapshots)).metadata
    except (CommitFailedException, NoSuchTableError) as error:
        raise Conflict from error
    except ValueError as error:
        if lacks(catalog.load_table(table.name()), snapshots):
            raise Conflict from error
        raise


def lacks(table: Table, snapshots: Sequence[int]) -> bool:
    return any(table.snapshot_by_id(each) is None for each in snapshots)


def _expired_snapshots(metadata: TableMetadata, now_ms: int) -> list[Snapshot]:
    """Return the snapshots that the table's properties, branches and tags do not keep.

    As Iceberg does: a branch keeps its newest ones, and all that are young; a tag keeps its own;
    a snapshot on neither stays while it is young.
    """
    age = int(metadata.properties.get(KEEP_MS, _AGE_MS))
    count = int(metadata.properties.get(KEEP, 1))
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    on_branches, kept = set[int](), {ref.snapshot_id for ref in metadata.refs.values()}
    for ref in metadata.refs.values():
        if str(ref.snapshot_ref_type) == "branch":
            least_ms = now_ms - (ref.max_snapshot_age_ms or age)
            newest_ones = ref.min_snapshots_to_keep or count
            snapshot, number = by_id.get(ref.snapshot_id), 0
            while snapshot is not None:
                on_branches.add(snapshot.snapshot_id)
                if number < newest_ones or snapshot.timestamp_ms >= least_ms:
                    kept.add(snapshot.snapshot_id)
                snapshot, number = by_id.get(snapshot.parent_snapshot_id or -1), number + 1
    return [
        each
        for number, each in by_id.items()
        if number not in kept and (number in on_branches or each.timestamp_ms < now_ms - age)
    ]


def _statistics(metadata: TableMetadata) -> set[str]:
    found = [*metadata.statistics, *metadata.partition_statistics]
    return {each.statistics_path for each in found}


@dataclass(frozen=True, slots=True)
class Procedures:
    """Spark's procedures on a table.

    They read all snapshots, and commit on top of the one they began with. So a tag keeps our sinks
    from removing any meanwhile.
    """

    spark: SparkJobs | None
    catalog: Catalog
    table: tuple[str, ...]

    def rewrite_data_files(self, target_bytes: int) -> Compaction:
        """Join files. Spark repeats its commit by itself."""
        options = f"map('target-file-size-bytes', '{target_bytes}', 'min-input-files', '2')"
        (done,) = self._call("rewrite_data_files", f"options => {options}")
        return Compaction(
            done["rewritten_data_files_count"],
            done["added_data_files_count"],
            done["rewritten_bytes_count"],
        )

    def remove_orphan_files(self, older_than_hours: int, *, dry_run: bool) -> Removal:
        """Remove files in the table's location that nothing names."""
        before = datetime.now(UTC) - timedelta(hours=older_than_hours)
        arguments = f"older_than => TIMESTAMP '{before:%Y-%m-%dT%H:%M:%SZ}', dry_run => {dry_run}"
        return Removal(0, len(self._call("remove_orphan_files", arguments)))

    def _call(self, procedure: str, arguments: str) -> list[Any]:
        if self.spark is None or importlib.util.find_spec("pyspark") is None:
            raise SinkFailed(missing_extra(f"{procedure} needs PySpark", "spark"))
        catalog = self.catalog.name
        key = f"spark.sql.catalog.{catalog}"
        name = ".".join(map(backticked, self.table)).replace("\\", "\\\\").replace("'", "\\'")
        statement = f"CALL {backticked(catalog)}.system.{procedure}(table => '{name}', {arguments})"

        def job(session: Any) -> list[Any]:
            if session.conf.get(key, None) is None:
                raise SinkFailed(
                    f"catalogue '{catalog}': Spark does not know it, and {procedure} is Spark's. "
                    f'Add "{key}" and its properties to [spark.conf]; see '
                    "docs/how-to/maintain-tables.md"
                )
            with self._pinned():
                return [row.asDict() for row in session.sql(statement).collect()]

        return self.spark.run(job, group=procedure, deadline_seconds=MAINTAINED_SECONDS)

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        """Hold the tag while Spark works. One that a killed process has left is moved."""
        self._change(lambda change, newest: change.create_tag(newest, TAG))
        try:
            yield
        finally:
            self._change(lambda change, _: change.remove_tag(TAG))

    def _change(self, tag: Callable[[ManageSnapshots, int], ManageSnapshots]) -> None:
        """Change the tag, if the table has a snapshot. Raises Conflict if others kept winning."""
        for _ in range(_TRIES):
            table = self.catalog.load_table(self.table)
            newest = table.current_snapshot()
            if newest is None:
                return
            check_in_order(table)
            with suppress(CommitFailedException):
                tag(table.manage_snapshots(), newest.snapshot_id).commit()
                return
        raise Conflict


def probe_catalogue(catalog: Catalog, name: tuple[str, ...], table: Table | None) -> str:
    """Use the rights that a table needs, with the least changes; return what was done.

    A property is committed to an existing table. Else a table of another name is made in the
    namespace, loaded, committed to and dropped with its files; so is a namespace that is missing.
    Raises SinkFailed.
    """
    space = name[:-1]
    spelled, spelled_space = ".".join(name), ".".join(space)
    if table is not None:
        _try(f"commit to {spelled}", lambda: _commit_property(table))
        return f"load and commit to {spelled}"
    new = (*space, f"headrace_check_{uuid.uuid4().hex}")
    spelled_new = ".".join(new)
    with ExitStack() as stack:
        if not _try(f"look for namespace {spelled_space}", lambda: catalog.namespace_exists(space)):
            make, drop = partial(catalog.create_namespace, space), catalog.drop_namespace
            stack.enter_context(_made(f"namespace {spelled_space}", make, partial(drop, space)))
        create = partial(catalog.create_table, new, _PROBE_SCHEMA)
        made = stack.enter_context(_made(spelled_new, create, partial(catalog.purge_table, new)))
        loaded = _try(f"load {spelled_new}", lambda: catalog.load_table(new))
        _try(f"commit to {spelled_new}", lambda: _commit_property(loaded))
    files, folder = CatalogStorage("", properties=made.io.properties).filesystem(made.location())
    with suppress(OSError):  # the catalogue may have removed it
        files.delete_dir(folder)
    return f"create, load, commit to and drop a table in {spelled_space}"


def _commit_property(table: Table) -> None:
    check_in_order(table)
    with table.transaction() as change:
        change.set_properties({_PROBED: datetime.now(UTC).isoformat(timespec="seconds")})


@contextmanager
def _made(what: str, make: Callable[[], Result], undo: Callable[[], object]) -> Iterator[Result]:
    """Make something, and undo it at the end; an error in between is the one that counts."""
    made = _try(f"create {what}", make)
    try:
        yield made
    except BaseException:
        with suppress(Exception):
            undo()
        raise
    _try(f"drop {what}", undo)


def _try(what: str, work: Callable[[], Result]) -> Result:
    try:
        return work()
    except SinkFailed:
        raise
    except Exception as error:
        raise SinkFailed(f"cannot {what}: {type(error).__name__}: {error}") from error
