"""The metadata of an Iceberg table: its transactions, and commits by pyiceberg."""

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids as without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertTableUUID,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.transforms import parse_transform

from sinks.names import local_path
from sinks.storage import Storage
from sinks.tables.files import DataFile, FileStager, sync
from sinks.tables.iceberg import DEFAULT, partition_of
from sinks.tables.iceberg_files import (
    CatalogStorage,
    IcebergLayout,
    TableFileIO,
    data_files,
    manifest_entry,
    partition_fields,
    stored_type,
    wider,
)
from sinks.tables.iceberg_maintenance import (
    KEEP,
    KEEP_MS,
    MARK,
    Procedures,
    check_in_order,
    expirable,
    expire,
    lacks,
    probe_catalogue,
    removals,
    remove_old,
    untagged,
)
from sinks.tables.log import Conflict, StoredFile, TableLog, TableState, pack, plain_field, unpack
from topology.errors import SinkFailed
from topology.sink import Compaction, Removal, SparkJobs

_VERSION = 2  # of the format: pyiceberg writes no later one, and earlier ones count no commits
_VALUE = re.compile(r"(\d+):(\d+)", re.ASCII)
_REMOVAL_SECONDS = 10.0  # at the end; what is left then is an orphan
_RELOAD_SECONDS = 300.0  # credentials that the catalogue gives do not live long
_NEW_TABLE = {
    # Every commit makes a snapshot and a metadata file that tells of all snapshots.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    KEEP_MS: str(15 * 60 * 1000),
    KEEP: "100",
}


class IcebergLog(TableLog):
    """The metadata of one table.

    A commit holds only if table, snapshot, schema and partition spec are those of its state, and
    makes a snapshot even where it adds no file: a change of properties alone conflicts with no
    other commit. pyiceberg's own retry is not used: it would put a commit on top of a fence.

    Epochs and txids are properties of the table, because snapshots expire.
    """

    def __init__(
        self,
        name: str,
        storage: Storage,
        catalog: str,
        rows: pa.Schema,
        spark: SparkJobs | None = None,
    ) -> None:
        """Only stores. Spark is for maintenance."""
        self._spark = spark
        self.name, self._storage, self._catalog_name, self._rows = name, storage, catalog, rows
        parts = name.split(".")
        self._identifier = (*(parts[:-1] or [DEFAULT]), parts[-1])
        self._catalog: Catalog | None = None
        self._given: dict[str, str] | None = None  # the catalogue's properties
        self._database: Path | None = None  # the folder of a SQLite file
        self._loaded_at = 0.0
        self._removal: Thread | None = None  # requests that the next commit does not wait for

    def close(self) -> None:
        if self._catalog is not None:
            if self._removal is not None:
                self._removal.join(_REMOVAL_SECONDS)
            self._catalog.close()
        self._catalog = self._given = None

    def stored(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([pa.field(each.name, stored_type(each), each.nullable) for each in schema])

    def read(self) -> TableState | None:
        try:
            table = self.load()
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        self._loaded_at = time.monotonic()
        return self._state(table)

    def load(self) -> Table:
        """Load the table, whether or not it can be written. Raises as pyiceberg does."""
        return self._opened().load_table(self._identifier)

    def probe(self) -> str:
        state = self.read()
        table = None if state is None else state.native
        return probe_catalogue(self._opened(), self._identifier, table)

    def stager(self, state: TableState, schema: pa.Schema) -> FileStager:
        table: Table = state.native
        store = CatalogStorage(self._storage.warehouse, properties=table.io.properties)
        return FileStager(store, table.location(), IcebergLayout(table, schema), schema)

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> TableState:
        catalog = self._opened()
        columns = assign_fresh_schema_ids(without_ids(schema))
        spec = PartitionSpec(
            *(
                PartitionField(
                    source_id=columns.find_field(each.column).field_id,
                    field_id=1000 + number,
                    transform=parse_transform(each.transform),
                    name=each.field_name,
                )
                for number, each in enumerate(partition_of(each, schema) for each in partition_by)
            )
        )
        if not catalog.namespace_exists(self._identifier[:-1]):  # to make one takes more rights
            catalog.create_namespace_if_not_exists(self._identifier[:-1])
        try:
            catalog.create_table(
                self._identifier, schema=columns, partition_spec=spec, properties=_NEW_TABLE
            )
        except TableAlreadyExistsError as error:
            raise Conflict from error
        return self.read_again()

    def add_columns(self, state: TableState, fields: "Sequence[pa.Field[Any]]") -> TableState:
        check_in_order(state.native)
        try:
            with state.native.update_schema() as update:
                update.union_by_name(without_ids(pa.schema(fields)))
        except CommitFailedException as error:
            raise Conflict from error
        return self.read_again()

    def transactions(self, state: TableState, apps: Sequence[str]) -> dict[str, int]:
        properties = state.native.properties
        return {app: self._version(app, properties[app]) for app in apps if app in properties}

    def commit(
        self, state: TableState, files: Sequence[DataFile], transactions: Mapping[str, int]
    ) -> TableState:
        """Commit files and transactions, and remove old snapshots of ours; see the contract.

        pyiceberg reads and writes all snapshots with each commit, and every one costs 0.1 ms.
        """
        table: Table = state.native
        whole, catalog = table.metadata, self._opened()
        expired = expirable(whole, int(time.time() * 1000))
        versions = {app: "{}:{}".format(*unpack(version)) for app, version in transactions.items()}
        # A snapshot's summary says for people what its commit was, and that it is ours.
        mark = {MARK: " ".join(f"{app}={text}" for app, text in versions.items()) or "-"}
        append = _Change(table).update_snapshot(snapshot_properties=mark).merge_append()
        for file in files:
            append.append_data_file(manifest_entry(file, table))
        try:
            updates, unmoved = append._commit()  # noqa: SLF001 - the public way is with retries
        except OSError as error:
            append._clean_all_uncommitted()  # noqa: SLF001
            now = self.read()
            if now is None or now.native.metadata_location != table.metadata_location:
                raise Conflict from error  # the newest snapshot that we know has expired
            raise
        schema_id, spec_id = whole.current_schema_id, whole.default_spec_id
        try:
            done = catalog.commit_table(
                table,
                (
                    *unmoved,
                    AssertTableUUID(uuid=whole.table_uuid),
                    AssertCurrentSchemaId.model_validate({"current-schema-id": schema_id}),
                    AssertDefaultSpecId.model_validate({"default-spec-id": spec_id}),
                    *([untagged(whole)] if expired else []),
                ),
                (
                    *_in_order(updates, whole),
                    SetPropertiesUpdate(updates=versions),
                    *removals(expired),
                ),
            )
        except ValueError as error:  # a catalogue in this process knows no such snapshot
            now = self.read()
            if now is None or lacks(now.native, expired):
                raise Conflict from error
            raise
        except (CommitFailedException, NoSuchTableError) as error:
            # A server or a proxy may have sent the request twice, and answer for the second one.
            now = self.read()
            if now is None or now.native.snapshot_by_id(append.snapshot_id) is None:
                append._clean_all_uncommitted()  # noqa: SLF001
                raise Conflict from error
            return now
        self.sync()  # before what the version before names is removed
        after = Table(table.name(), done.metadata, done.metadata_location, table.io, catalog)
        written = append._written_manifests  # noqa: SLF001
        if self._removal is not None:
            self._removal.join()
        removing = (table, after, expired, written)
        self._removal = Thread(target=remove_old, args=removing, daemon=True)
        self._removal.start()
        if time.monotonic() - self._loaded_at > _RELOAD_SECONDS:
            return self.read_again()
        return self._state(after)

    def sync(self) -> None:
        """Sync the catalogue's folder: SQLite syncs its file, and not that its journal is gone."""
        if self._database is not None:
            sync(str(self._database))

    def named(self, base: int, state: TableState, paths: Collection[str]) -> set[str]:
        root = state.native.location()
        wanted = {f"{root}/{path}": path for path in paths}
        found = (wanted.get(each.file_path) for each in data_files(state.native, since=base))
        return {path for path in found if path is not None}

    def files(self, state: TableState) -> list[StoredFile]:
        return [
            StoredFile(
                str(local_path(each.file_path) or each.file_path),
                each.file_size_in_bytes,
                str(each.partition),
            )
            for each in data_files(state.native)
        ]

    def compact(self, state: TableState, target_bytes: int) -> Compaction:
        """Compact by Spark, which tries again itself: pyiceberg rewrites no files."""
        return self._procedures(state).rewrite_data_files(target_bytes)

    def vacuum(self, state: TableState, older_than_hours: int, *, dry_run: bool) -> Removal:
        """Vacuum by Spark, which lists the table's location."""
        return self._procedures(state).remove_orphan_files(older_than_hours, dry_run=dry_run)

    def _procedures(self, state: TableState) -> Procedures:
        return Procedures(self._spark, self._opened(), state.native.name())

    def expire(self, state: TableState, *, dry_run: bool) -> Removal:
        return expire(state.native, self._opened(), self.sync, dry_run=dry_run)

    def _state(self, table: Table) -> TableState:
        metadata = table.metadata
        reason = next(_obstacles(table), None)
        if reason is not None:
            raise SinkFailed(f"table '{self.name}' at {table.location()}: {reason}; use SparkSink")
        schema = table.schema()
        ids = [
            schema.find_field(name).field_id
            for name in self._rows.names
            if name in schema.column_names
        ]
        return TableState(
            # Files are written for these columns, below this location.
            table_id=f"{metadata.table_uuid} {table.location()} {ids}",
            version=table.last_sequence_number,
            schema=pa.schema([plain_field(each.name, each, wider) for each in schema.as_arrow()]),
            partition_by=tuple(each.spelled for each in partition_fields(table)),
            native=table,
        )

    def _version(self, app: str, value: str) -> int:
        found = _VALUE.fullmatch(value)
        if found is None:
            raise SinkFailed(
                f"table '{self.name}', property '{app}': found {value!r}, expected EPOCH:TXID"
            )
        return pack(int(found[1]), int(found[2]))

    def _opened(self) -> Catalog:
        """Connect to the catalogue. Raises SinkFailed: it is unknown, or a package is missing."""
        properties = self._properties()
        if self._catalog is None or properties != self._given:  # a secret's file has changed
            self.close()
            try:
                self._catalog = load_catalog(self._catalog_name, **properties)
            except (ImportError, NotInstalledError) as error:
                signs = "boto3" in str(error)
                advice = '; requests are signed by: pip install "pyiceberg[rest-sigv4]"' * signs
                raise SinkFailed(f"catalogue '{self._catalog_name}': {error}{advice}") from error
            self._given = properties
            file = re.fullmatch(r"sqlite(?:\+\w+)?:///(.+)", properties.get("uri", ""))
            self._database = Path(file[1]).absolute().parent if file else None
        return self._catalog

    def _properties(self) -> dict[str, str]:
        given = self._storage.catalogs.get(self._catalog_name)
        warehouse = local_path(self._storage.warehouse)
        if given is None:
            known = ", ".join(f"'{each}'" for each in self._storage.catalogs) or "none"
            if self._catalog_name != DEFAULT or warehouse is None:
                raise SinkFailed(
                    f"catalogue '{self._catalog_name}' of table '{self.name}': found {known}, "
                    f"expected a section [storage.catalogs.{self._catalog_name}]; see "
                    "docs/how-to/iceberg-catalogues.md"
                )
            given = {"type": "sql", "uri": f"sqlite:///{warehouse}/iceberg.db"}
        known_ones = {
            "warehouse": self._storage.warehouse if warehouse is None else f"file://{warehouse}",
            "py-io-impl": f"{TableFileIO.__module__}.{TableFileIO.__name__}",
            **self._storage.catalog_properties(),
        }
        return known_ones | {name: str(value) for name, value in given.items()}


class _Change(Transaction):
    """A transaction that makes one snapshot of a table as it is.

    pyiceberg's own copies all the metadata, old snapshots and all, each of the fourteen times that
    a snapshot asks for it.
    """

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata: nothing was changed before."""
        return self._table.metadata


def _in_order(updates: Sequence[TableUpdate], metadata: TableMetadata) -> Iterator[TableUpdate]:
    """Date no snapshot before the table's last change, as a clock that is behind would.

    Iceberg's Java library reads no such table.
    """
    for each in updates:
        if isinstance(each, AddSnapshotUpdate):
            date = max(each.snapshot.timestamp_ms, metadata.last_updated_ms + 1)
            snapshot = each.snapshot.model_copy(update={"timestamp_ms": date})
            yield each.model_copy(update={"snapshot": snapshot})
        else:
            yield each


def _obstacles(table: Table) -> Iterator[str]:
    if table.format_version != _VERSION:
        yield f"found format version {table.format_version}, expected {_VERSION}"
    if "encryption.key-id" in table.properties:
        yield "its files are encrypted"
    for name in ("write.data.path", "write.metadata.path"):
        if name in table.properties:
            yield f"it has {name} = {table.properties[name]}"
    top = {field.field_id for field in table.schema().fields}
    for field in table.spec().fields:
        if field.source_id not in top:
            yield f"it is partitioned by {field.name}, a column within a column"
