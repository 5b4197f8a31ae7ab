"""Maintenance of Iceberg tables: pyiceberg expires snapshots, Spark's procedures do the rest."""

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sinks.tables.iceberg_history import (
    KEEP,
    KEEP_MS,
    MAINTAINED_SECONDS,
    TAG,
    check_in_order,
    only_named_by,
    removals,
)
from sinks.tables.log import Conflict
from topology.errors import SinkFailed, missing_extra
from topology.sink import Compaction, Removal, SparkDriver

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement
    from pyiceberg.table.update.snapshot import ManageSnapshots

_AGE_MS = 5 * 86_400_000  # Iceberg's own default
_TRIES = 50


def expire(
    table: "Table", catalog: "Catalog", sync: Callable[[], object], *, dry_run: bool
) -> Removal:
    """Remove the snapshots that nothing keeps, and the files that they alone name.

    First the snapshots go, in a commit, and `sync` is called. Then the files go: what is left if
    this process ends in between is named by nothing. Raises Conflict, and SinkFailed.
    """
    if table.properties.get("gc.enabled", "true").lower() == "false":
        raise SinkFailed(f"table {'.'.join(table.name())} has gc.enabled = false")
    before = table.metadata
    gone = unkept(before, int(time.time() * 1000))
    if not gone:
        return Removal(0, 0)
    after = before
    if not dry_run:
        after = _without(table, catalog, [each.snapshot_id for each in gone])
        sync()
    kept = [each for each in after.snapshots if each not in gone]
    files = only_named_by(gone, kept, table.io, with_data=True)
    files += _statistics(before) - _statistics(after)
    for file in () if dry_run else files:
        with suppress(FileNotFoundError):
            table.io.delete(file)
    return Removal(len(gone), len(files))


def _without(table: "Table", catalog: "Catalog", snapshots: Sequence[int]) -> "TableMetadata":
    """Commit that snapshots are no more, unless a branch or tag has moved. Raises Conflict."""
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError  # noqa: PLC0415
    from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID  # noqa: PLC0415

    check_in_order(table)
    metadata = table.metadata
    unmoved: tuple[TableRequirement, ...] = tuple(
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
        for name, ref in metadata.refs.items()
    )
    same = AssertTableUUID(uuid=metadata.table_uuid)
    try:
        return catalog.commit_table(table, (same, *unmoved), removals(snapshots)).metadata
    except (CommitFailedException, NoSuchTableError) as error:
        raise Conflict from error
    except ValueError as error:
        if lacks(catalog.load_table(table.name()), snapshots):
            raise Conflict from error
        raise


def lacks(table: "Table", snapshots: Sequence[int]) -> bool:
    """Whether any of the snapshots is gone."""
    return any(table.snapshot_by_id(each) is None for each in snapshots)


def unkept(metadata: "TableMetadata", now_ms: int) -> "list[Snapshot]":
    """The snapshots that the table's properties and its branches and tags do not keep.

    As Iceberg has it: of a branch the newest stay, so many, and all that are young; a tag's
    stays; what is on none stays while it is young.
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


def _statistics(metadata: "TableMetadata") -> set[str]:
    found = [*metadata.statistics, *metadata.partition_statistics]
    return {each.statistics_path for each in found}


def small_files(table: "Table", target_bytes: int) -> dict[Any, list[int]]:
    """The sizes of the files below a size, by partition."""
    found: dict[Any, list[int]] = {}
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes < target_bytes:
            sizes = found.setdefault(str(task.file.partition), [])
            sizes.append(task.file.file_size_in_bytes)
    return found


@dataclass(frozen=True, slots=True)
class Procedures:
    """Spark's procedures on a table.

    They read all snapshots, and what they rewrite must follow from the one they began with. So
    a tag keeps our sinks from removing any meanwhile.
    """

    spark: SparkDriver | None
    catalog: "Catalog"
    table: tuple[str, ...]

    def rewrite_data_files(self, target_bytes: int) -> Compaction:
        """Join files. Spark tries its commit again by itself."""
        options = f"map('target-file-size-bytes', '{target_bytes}', 'min-input-files', '2')"
        (done,) = self._call("rewrite_data_files", f"options => {options}")
        return Compaction(
            done["rewritten_data_files_count"],
            done["added_data_files_count"],
            done["rewritten_bytes_count"],
        )

    def remove_orphan_files(self, older_than_hours: int, *, dry_run: bool) -> Removal:
        """Remove what lies in the table's location and nothing names."""
        before = datetime.now(UTC) - timedelta(hours=older_than_hours)
        arguments = f"older_than => TIMESTAMP '{before:%Y-%m-%dT%H:%M:%SZ}', dry_run => {dry_run}"
        return Removal(0, len(self._call("remove_orphan_files", arguments)))

    def _call(self, procedure: str, arguments: str) -> list[Any]:
        """The rows that a procedure answers. Raises SinkFailed, and what the job raises."""
        if self.spark is None or importlib.util.find_spec("pyspark") is None:
            raise SinkFailed(missing_extra(f"{procedure} needs PySpark", "spark"))
        catalog = self.catalog.name
        key = f"spark.sql.catalog.{catalog}"
        name = ".".join(map(_quoted, self.table)).replace("\\", "\\\\").replace("'", "\\'")
        statement = f"CALL {_quoted(catalog)}.system.{procedure}(table => '{name}', {arguments})"

        def job(session: Any) -> list[Any]:
            if session.conf.get(key, None) is None:
                raise SinkFailed(
                    f"catalogue '{catalog}': Spark does not know it, and {procedure} is Spark's. "
                    f'Add "{key}" and its properties to [spark.conf]; see '
                    "docs/how-to/maintain-tables.md"
                )
            with self._all_kept():
                return [row.asDict() for row in session.sql(statement).collect()]

        return self.spark.run(job, group=procedure, deadline_seconds=MAINTAINED_SECONDS)

    @contextmanager
    def _all_kept(self) -> Iterator[None]:
        """Have the tag while Spark works. One that a killed process has left is moved."""
        self._change(lambda change, newest: change.create_tag(newest, TAG))
        try:
            yield
        finally:
            self._change(lambda change, _: change.remove_tag(TAG))

    def _change(self, tag: "Callable[[ManageSnapshots, int], ManageSnapshots]") -> None:
        """Change the tag, if the table has a snapshot. Raises Conflict if others kept winning."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
