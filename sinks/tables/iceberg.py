"""IcebergSink: Apache Iceberg tables, committed by pyiceberg through a catalogue. No JVM."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from sinks.names import OnNewColumns, local_path
from sinks.storage import Storage
from sinks.tables.files import FileStager
from sinks.tables.partitioning import can_partition, check_partitions
from sinks.tables.table import TableSink, check_writable
from topology.errors import InvalidSchema, SinkFailed, missing_extra
from topology.schema import ArrowSchema, Row
from topology.sink import Batch, SinkContext, SparkJobs, Staged

if TYPE_CHECKING:
    from sinks.tables.iceberg_log import IcebergLog

DEFAULT = "default"  # catalogue and namespace where none is named
_NAME = re.compile(r"[^\s./\\:]+(\.[^\s./\\:]+)*")
_TIME = re.compile(r"(year|month|day|hour)\((.+)\)")
_SIZED = re.compile(r"(bucket|truncate)\((\d+), ?(.+)\)")


class PartitionBy(NamedTuple):
    """A field of a partition spec: a column, as it is or transformed."""

    spelled: str  # "day(at)"
    column: str
    transform: str  # in Iceberg's spelling: "bucket[16]"

    @classmethod
    def of(cls, column: str, transform: str) -> "PartitionBy":
        word, _, size = transform.rstrip("]").partition("[")
        spelled = f"{word}({size}, {column})" if size else f"{word}({column})"
        return cls(column if transform == "identity" else spelled, column, transform)

    @property
    def field_name(self) -> str:
        """The field's name in a table that we make."""
        if self.transform == "identity":
            return self.column
        word, _, size = self.transform.rstrip("]").partition("[")
        return "_".join(filter(None, [self.column, word.removesuffix("ate"), size]))


def partition_of(spelled: str, schema: pa.Schema) -> PartitionBy:
    """Parse an item of `partition_by`. Raises InvalidSchema."""
    column, transform = spelled, "identity"
    if spelled not in schema.names:
        if found := _TIME.fullmatch(spelled):
            transform, column = found.groups()
        elif found := _SIZED.fullmatch(spelled):
            transform, column = f"{found[1]}[{found[2]}]", found[3]
    if column not in schema.names:
        raise InvalidSchema(
            f"partition_by: found {spelled!r}, expected one of the columns "
            f"{', '.join(schema.names)}, or year(C), month(C), day(C), hour(C), bucket(N, C) or "
            "truncate(N, C) of one"
        )
    return PartitionBy.of(column, transform)


class IcebergSink(TableSink[Row]):
    """Writes an Iceberg table through a catalogue.

    `table` is NAME or NAMESPACE.NAME. `catalog` names a section `[storage.catalogs.NAME]`; without
    one, "default" is a SQLite file in a warehouse on a local disk, for one host.

    `partition_by` has columns, and transforms: `year(at)`, `month(at)`, `day(at)`, `hour(at)`,
    `bucket(16, id)`, `truncate(4, name)`.
    """

    made_by = "IcebergSink"

    def __init__(
        self,
        table: str,
        *,
        schema: type[Row] | ArrowSchema,
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
        catalog: str = DEFAULT,
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
        check_partitions(table, self.schema, columns, _has_exact_values, leaves_some=False)
        self.partition_by = [each.spelled for each in fields]

    def is_for_one_host(self, storage: Storage) -> bool:
        """Whether the catalogue is a SQLite file."""
        given = storage.catalogs.get(self.catalog, {"uri": "sqlite:"})
        return str(given.get("uri")).startswith("sqlite")

    def _locate(self, context: SinkContext) -> str:
        """Return the table's name, until the catalogue tells the location."""
        folder = local_path(context.storage.warehouse)
        if self.catalog not in context.storage.catalogs and folder is not None:
            check_writable(self.table, folder)
        return f"{self.catalog}.{self.table}"

    def _make_log(self, context: SinkContext, uri: str) -> "IcebergLog":
        del uri
        storage = context.storage
        self._new_log = partial(open_log, self.table, storage, self.catalog, self.schema)
        self._iceberg = self._new_log(context.spark)
        return self._iceberg

    def stage(self, batch: Batch) -> Staged:
        """See the contract. After an error the next attempt has new credentials."""
        try:
            return super().stage(batch)
        except OSError:
            if self._stager is not None and local_path(self._stager.uri) is None:
                self._renew(self._stager)
            raise

    def _renew(self, stager: FileStager) -> None:
        """Get new credentials from the catalogue, over another connection.

        The log belongs to the commit thread.
        """
        log = self._new_log()
        try:
            if (state := log.read()) is not None:
                self._stager = replace(stager, storage=log.stager(state, self.schema).storage)
        finally:
            log.close()

    def probe(self) -> str:
        """Use the rights that the table needs; see `probe_catalogue`. Needs an open sink."""
        return self._iceberg.probe()


def open_log(
    name: str, storage: Storage, catalog: str, rows: pa.Schema, spark: SparkJobs | None = None
) -> "IcebergLog":
    """Make the log of a table, which connects when used. Raises SinkFailed without pyiceberg."""
    try:
        from sinks.tables.iceberg_log import IcebergLog  # noqa: PLC0415 - imports pyiceberg
    except ImportError as error:
        raise SinkFailed(
            missing_extra(f"catalogue '{catalog}' needs pyiceberg", "iceberg")
        ) from error
    return IcebergLog(name, storage, catalog, rows, spark)


def _has_exact_values(kind: pa.DataType) -> bool:
    """Whether a column of the type can be a partition by its values; NaN is none."""
    inner = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return can_partition(kind) and not pa.types.is_floating(inner)
