"""Apache Iceberg tables, committed by pyiceberg through a catalogue. No JVM."""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinks.columns import Fitted
from sinks.names import OnNewColumns, local_path
from sinks.storage import Storage
from sinks.tables.files import DataFile, sync
from sinks.tables.iceberg_files import (
    IcebergLayout,
    as_iceberg,
    as_manifest_entry,
    data_paths,
    has_exact_values,
    obstacles,
    partition_fields,
    partition_name,
    partition_of,
    stored_type,
    tied,
    wider,
)
from sinks.tables.iceberg_history import (
    KEEP,
    KEEP_MS,
    MARK,
    check_in_order,
    expired_of,
    in_order,
    removals,
    remove_old,
    untagged,
)
from sinks.tables.iceberg_maintenance import Procedures, expire, lacks, small_files
from sinks.tables.iceberg_probe import probe_catalogue
from sinks.tables.log import Conflict, TableLog, TableState, pack, plain_field, unpack
from sinks.tables.partitioning import Layout, check_partitions
from sinks.tables.table import TableSink, check_writable
from topology.errors import InvalidSchema, SinkFailed, missing_extra
from topology.schema import Row
from topology.sink import Compaction, Piece, Removal, SinkContext, SparkDriver

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_NAME = re.compile(r"[^\s./\\:]+(\.[^\s./\\:]+)*")
_VALUE = re.compile(r"(\d+):(\d+)", re.ASCII)
_DEFAULT = "default"  # the catalogue and the namespace where none is named
_IO = "sinks.tables.iceberg_io.TableFileIO"
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


class IcebergSink(TableSink[Row]):
    """Writes an Iceberg table through a catalogue.

    `table` is NAME or NAMESPACE.NAME. `catalog` names a section `[storage.catalogs.NAME]`; without
    one there is "default", a SQLite file in a warehouse on a local disk, for one host.

    `partition_by` has columns, and transforms: `year(at)`, `month(at)`, `day(at)`, `hour(at)`,
    `bucket(16, id)`, `truncate(4, name)`.
    """

    made_by = "IcebergSink"

    def __init__(
        self,
        table: str,
        *,
        schema: type[Row] | pa.Schema,
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
        catalog: str = _DEFAULT,
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema."""
        super().__init__(
            table, schema=schema, partition_by=partition_by, on_new_columns=on_new_columns
        )
        if not _NAME.fullmatch(table):
            raise InvalidSchema(f"table {table!r}: expected NAME or NAMESPACE.NAME")
        self.catalog = catalog
        fields = [partition_of(each, self.schema) for each in self.partition_by]
        columns = [each.column for each in fields if each.transform == "identity"]
        check_partitions(table, self.schema, columns, has_exact_values, leaves_some=False)
        self.partition_by = [each.spelled for each in fields]

    def is_for_one_host(self, storage: Storage) -> bool:
        """Whether the catalogue is a SQLite file."""
        given = storage.catalogs.get(self.catalog, {"uri": "sqlite:"})
        return str(given.get("uri")).startswith("sqlite")

    def _locate(self, context: SinkContext) -> str:
        """The table's name; its location, once there is one, is the catalogue's to say."""
        folder = local_path(context.storage.warehouse)
        if self.catalog not in context.storage.catalogs and folder is not None:
            check_writable(self.table, folder)
        return f"{self.catalog}.{self.table}"

    def _make_log(self, context: SinkContext, uri: str) -> "IcebergLog":
        del uri
        self._iceberg = IcebergLog(
            self.table, context.storage, self.catalog, self.schema, context.spark
        )
        return self._iceberg

    def _adopt(self, state: TableState) -> None:
        self._uri = state.native.location()
        super()._adopt(state)

    def _files_of(self, state: TableState) -> tuple[Storage, str, Layout]:
        return self._iceberg.files_of(state)

    def _put(self, pieces: Sequence[Piece], number: int) -> tuple[tuple[Any, ...], Fitted]:
        try:
            return super()._put(pieces, number)
        except OSError:
            self._renew()
            raise

    def _renew(self) -> None:
        """Get new credentials for the next try: a catalogue's may have expired.

        By a connection of its own, because the log is the commit thread's.
        """
        if self._writer is None or local_path(self._writer.uri) is not None:
            return
        log = IcebergLog(self.table, self._storage, self.catalog, self.schema)
        try:
            state = log.read()
            if state is not None:
                self._writer = replace(self._writer, storage=log.files_of(state)[0])
        finally:
            log.close()

    def probe(self) -> str:
        """Use the rights that the table needs; see `probe_catalogue`. Needs an open sink."""
        return self._iceberg.probe()

    def close(self) -> None:
        """Let go of the table and of the catalogue's connections."""
        if self._log is not None:
            self._iceberg.close()
        super().close()


class IcebergLog(TableLog):
    """The metadata of one table.

    A commit holds only if table, snapshot, schema and partition spec are those of its state, and
    makes a snapshot even where it adds no file: to others' commits a change of properties alone
    is none. pyiceberg's own retry is not used: it would put a commit on top of a fence.

    Epochs and txids are properties of the table, because snapshots expire.
    """

    def __init__(
        self,
        name: str,
        storage: Storage,
        catalog: str,
        rows: pa.Schema,
        spark: SparkDriver | None = None,
    ) -> None:
        """Only stores. Spark is for maintenance."""
        self._spark = spark
        self._name, self._storage, self._catalog_name, self._rows = name, storage, catalog, rows
        parts = name.split(".")
        self._identifier = (*(parts[:-1] or [_DEFAULT]), parts[-1])
        self._catalog: Catalog | None = None
        self._given: dict[str, str] | None = None  # the catalogue's properties
        self._database: Path | None = None  # the folder of a SQLite file
        self._loaded_at = 0.0
        self._removal: Thread | None = None  # requests that the next commit does not wait for

    def close(self) -> None:
        """Let go of connections."""
        if self._catalog is not None:
            if self._removal is not None:
                self._removal.join(_REMOVAL_SECONDS)
            self._catalog.close()
        self._catalog = self._given = None

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """See the contract."""
        seen: dict[str, str] = {}
        for name in schema.names:
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise InvalidSchema(
                    f"columns '{other}' and '{name}' differ in case only; Spark takes them for one"
                )
        return pa.schema([pa.field(each.name, stored_type(each), each.nullable) for each in schema])

    def read(self) -> TableState | None:
        """See the contract."""
        self._opened()  # first: it says so if there is no pyiceberg
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError  # noqa: PLC0415

        try:
            table = self.load()
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        self._loaded_at = time.monotonic()
        return self._state(table)

    def load(self) -> "Table":
        """The table as it is, whether or not it can be written. Raises as pyiceberg does."""
        return self._opened().load_table(self._identifier)

    def probe(self) -> str:
        """See `probe_catalogue`."""
        state = self.read()
        table = None if state is None else state.native
        return probe_catalogue(self._opened(), self._identifier, table)

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> TableState:
        """See the contract."""
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415
        from pyiceberg.partitioning import PartitionField, PartitionSpec  # noqa: PLC0415
        from pyiceberg.schema import assign_fresh_schema_ids  # noqa: PLC0415
        from pyiceberg.transforms import parse_transform  # noqa: PLC0415

        catalog = self._opened()
        columns = assign_fresh_schema_ids(as_iceberg(schema))
        wanted = [partition_of(each, schema) for each in partition_by]
        spec = PartitionSpec(
            *(
                PartitionField(
                    source_id=columns.find_field(each.column).field_id,
                    field_id=1000 + number,
                    transform=parse_transform(each.transform),
                    name=partition_name(each),
                )
                for number, each in enumerate(wanted)
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
        return self._again()

    def add_columns(self, state: TableState, fields: "Sequence[pa.Field[Any]]") -> TableState:
        """See the contract."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        check_in_order(state.native)
        try:
            with state.native.update_schema() as update:
                update.union_by_name(as_iceberg(pa.schema(fields)))
        except CommitFailedException as error:
            raise Conflict from error
        return self._again()

    def transactions(self, state: TableState, apps: Sequence[str]) -> dict[str, int]:
        """See the contract."""
        properties = state.native.properties
        return {app: self._version(app, properties[app]) for app in apps if app in properties}

    def commit(
        self, state: TableState, files: Sequence[DataFile], transactions: Mapping[str, int]
    ) -> TableState:
        """See the contract.

        Old snapshots of ours go in the same commit: pyiceberg reads and writes all of them with
        each, and every one costs 0.1 ms.
        """
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError  # noqa: PLC0415
        from pyiceberg.table import Table  # noqa: PLC0415
        from pyiceberg.table.update import (  # noqa: PLC0415
            AssertCurrentSchemaId,
            AssertDefaultSpecId,
            AssertTableUUID,
            SetPropertiesUpdate,
        )

        from sinks.tables.iceberg_io import Append  # noqa: PLC0415 - imports pyiceberg

        table: Table = state.native
        whole, catalog = table.metadata, self._opened()
        expired = expired_of(whole, int(time.time() * 1000))
        change = Append(table).update_snapshot(snapshot_properties=_summary(transactions))
        append = change.merge_append()
        for file in files:
            append.append_data_file(as_manifest_entry(file, table.location(), table))
        try:
            updates, unmoved = append._commit()  # noqa: SLF001 - the public way is with retries
        except OSError as error:
            append._clean_all_uncommitted()  # noqa: SLF001
            now = self.read()
            if now is None or now.native.metadata_location != table.metadata_location:
                raise Conflict from error  # the newest snapshot that we know has expired
            raise
        versions = {app: _text(version) for app, version in transactions.items()}
        try:
            done = catalog.commit_table(
                table,
                (
                    *unmoved,
                    AssertTableUUID(uuid=whole.table_uuid),
                    AssertCurrentSchemaId.model_validate(
                        {"current-schema-id": whole.current_schema_id}
                    ),
                    AssertDefaultSpecId.model_validate({"default-spec-id": whole.default_spec_id}),
                    *([untagged(whole)] if expired else []),
                ),
                (
                    *in_order(updates, whole),
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
            return self._again()
        return self._state(after)

    def sync(self) -> None:
        """See the contract. SQLite syncs its file, and not that its journal is gone."""
        if self._database is not None:
            sync(str(self._database))

    def named(self, base: int, state: TableState, paths: Collection[str]) -> set[str]:
        """See the contract."""
        root = state.native.location()
        wanted = {f"{root}/{path}": path for path in paths}
        found = (wanted.get(path) for path in data_paths(state.native, since=base))
        return {path for path in found if path is not None}

    def files(self, state: TableState) -> list[str]:
        """See the contract."""
        return [str(local_path(path) or path) for path in data_paths(state.native)]

    def compact(self, state: TableState, target_bytes: int) -> Compaction:
        """See the contract. By Spark, which tries again itself: pyiceberg rewrites no files."""
        return self._procedures(state).rewrite_data_files(target_bytes)

    def small_files(self, state: TableState, target_bytes: int) -> dict[Any, list[int]]:
        """See the contract."""
        return small_files(state.native, target_bytes)

    def vacuum(self, state: TableState, older_than_hours: int, *, dry_run: bool) -> Removal:
        """See the contract. By Spark, which lists the table's location."""
        return self._procedures(state).remove_orphan_files(older_than_hours, dry_run=dry_run)

    def _procedures(self, state: TableState) -> Procedures:
        return Procedures(self._spark, self._opened(), state.native.name())

    def expire(self, state: TableState, *, dry_run: bool) -> Removal:
        """See the contract."""
        return expire(state.native, self._opened(), self.sync, dry_run=dry_run)

    def files_of(self, state: TableState) -> tuple[Storage, str, Layout]:
        """Where and how files are written for the table as it is."""
        from sinks.tables.iceberg_io import CatalogStorage  # noqa: PLC0415 - imports pyiceberg

        table: Table = state.native
        schema = table.schema()
        fields = partition_fields(table)
        layout = IcebergLayout(
            fields,
            {each.column: schema.find_field(each.column).field_type for each in fields},
            tied(self._rows, schema.as_arrow()),
        )
        store = CatalogStorage(self._storage.warehouse, properties=table.io.properties)
        return store, table.location(), layout

    def _state(self, table: "Table") -> TableState:
        metadata: Any = table.metadata
        reason = next(obstacles(table), None)
        if reason is not None:
            raise SinkFailed(f"table '{self._name}' at {table.location()}: {reason}; use SparkSink")
        schema = table.schema()
        ids = [
            schema.find_field(name).field_id
            for name in self._rows.names
            if name in schema.column_names
        ]
        return TableState(
            # Files are written for these columns, below this location.
            table_id=f"{metadata.table_uuid} {table.location()} {ids}",
            version=metadata.last_sequence_number,
            schema=pa.schema([plain_field(each.name, each, wider) for each in schema.as_arrow()]),
            partition_by=tuple(each.spelled for each in partition_fields(table)),
            native=table,
        )

    def _version(self, app: str, value: str) -> int:
        found = _VALUE.fullmatch(value)
        if found is None:
            raise SinkFailed(
                f"table '{self._name}', property '{app}': found {value!r}, expected EPOCH:TXID"
            )
        return pack(int(found[1]), int(found[2]))

    def _again(self) -> TableState:
        state = self.read()
        if state is None:
            raise SinkFailed(f"table '{self._name}' was removed while it was written")
        return state

    def _opened(self) -> "Catalog":
        """The catalogue. Raises SinkFailed: it is not known, or a package is missing."""
        properties = self._properties()
        if self._catalog is None or properties != self._given:  # a secret's file has changed
            self.close()
            where = f"catalogue '{self._catalog_name}'"
            try:
                from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - see sinks/__init__
                from pyiceberg.exceptions import NotInstalledError  # noqa: PLC0415
            except ImportError as error:
                raise SinkFailed(missing_extra(f"{where} needs pyiceberg", "iceberg")) from error
            try:
                self._catalog = load_catalog(self._catalog_name, **properties)
            except (ImportError, NotInstalledError) as error:
                signs = "boto3" in str(error)
                advice = '; requests are signed by: pip install "pyiceberg[rest-sigv4]"' * signs
                raise SinkFailed(f"{where}: {error}{advice}") from error
            self._given = properties
            file = re.fullmatch(r"sqlite(?:\+\w+)?:///(.+)", properties.get("uri", ""))
            self._database = Path(file[1]).absolute().parent if file else None
        return self._catalog

    def _properties(self) -> dict[str, str]:
        given = self._storage.catalogs.get(self._catalog_name)
        warehouse = local_path(self._storage.warehouse)
        if given is None:
            known = ", ".join(f"'{each}'" for each in self._storage.catalogs) or "none"
            if self._catalog_name != _DEFAULT or warehouse is None:
                raise SinkFailed(
                    f"catalogue '{self._catalog_name}' of table '{self._name}': found {known}, "
                    f"expected a section [storage.catalogs.{self._catalog_name}]; see "
                    "docs/how-to/iceberg-catalogues.md"
                )
            given = {"type": "sql", "uri": f"sqlite:///{warehouse}/iceberg.db"}
        place = self._storage.warehouse if warehouse is None else f"file://{warehouse}"
        known_ones = {"warehouse": place, "py-io-impl": _IO, **self._storage.catalog_properties()}
        return known_ones | {name: str(value) for name, value in given.items()}


def _text(version: int) -> str:
    epoch, txid = unpack(version)
    return f"{epoch}:{txid}"


def _summary(transactions: Mapping[str, int]) -> dict[str, str]:
    """What a snapshot's summary says of its commit, for people, and that it is ours."""
    return {MARK: " ".join(f"{app}={_text(it)}" for app, it in transactions.items()) or "-"}
