"""An Iceberg table's metadata, read and written by Iceberg's own library in Spark's JVM.

No Spark job runs: a commit is a manifest, a list of manifests and a metadata file, which the JVM
writes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sinks.files.data_file import DataFile
from sinks.spark.iceberg.facts import Facts
from sinks.spark.iceberg.schema import Json
from sinks.spark.local_table import Conflict
from sinks.spark.reasons import one_line

_EXCEPTIONS = "org.apache.iceberg.exceptions."
_ABSENT = f"{_EXCEPTIONS}NoSuchTableException"
_THERE = f"{_EXCEPTIONS}AlreadyExistsException"
_CONFLICT = f"{_EXCEPTIONS}CommitFailedException"
_INVALID = f"{_EXCEPTIONS}ValidationException"
_DATA_PATH = "write.data.path"
_ENCRYPTION_KEY = "encryption.key-id"
_NOTE = "headrace.transactions"  # in a snapshot's summary, for people
_KEPT_MS = "history.expire.max-snapshot-age-ms"
_KEPT_MS_DEFAULT = 5 * 24 * 3600 * 1000  # Iceberg's own
_NO_CLEANING = "gc.enabled"
_NEW_TABLE = {
    # Each commit writes a metadata file; without this they stay for ever.
    "write.metadata.delete-after-commit.enabled": "true",
    # Each commit makes a snapshot too, of which every later one's metadata file tells.
    _KEPT_MS: str(24 * 3600 * 1000),
}


class Gone(Exception):
    """Files that were to be replaced are no part of the table any more; nothing was done."""


class TableFile(NamedTuple):
    """A data file that is part of the table."""

    path: str  # as the table names it: a path or URI as Hadoop reads it
    num_bytes: int
    spec_id: int
    partition: tuple[str, ...]  # JSON of each value
    has_deletes: bool  # whether some of its rows are deleted by files beside it
    json: str  # all that the table knows of it


class IcebergLog:
    """The metadata of the table at `location`, in one JVM; used within jobs of the SparkDriver.

    A commit is built on the metadata that `read` found last, and raises Conflict if it is not
    the newest any more: whatever was decided by what was read held when it was committed. After
    a commit the table is read anew before the next.
    """

    def __init__(self, session: Any, location: str) -> None:
        self.session = session
        self.properties: Mapping[str, str] = {}  # of the table, as read last
        self._location = location
        iceberg = session._jvm.org.apache.iceberg  # noqa: SLF001 - PySpark has no public way
        configuration = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._tables = iceberg.hadoop.HadoopTables(configuration)
        # Kept, because each dot asks the JVM what there is.
        self._mapper = iceberg.util.JsonUtil.mapper()
        self._schemas, self._specs = iceberg.SchemaParser, iceberg.PartitionSpec
        self._spec_text = iceberg.PartitionSpecParser.toJson
        self._file, self._file_text = (
            iceberg.ContentFileParser.fromJson,
            iceberg.ContentFileParser.toJson,
        )
        self._builder = iceberg.DataFiles.builder
        self._metrics = iceberg.parquet.ParquetUtil.fileMetrics
        self._metrics_config = iceberg.MetricsConfig.forTable
        self._metadata_text = iceberg.TableMetadataParser.toJson
        self._table: Any = None
        self._transaction: Any = None
        self._facts: Facts | None = None

    def read(self) -> Facts | None:
        """What the table is like now; None if there is none. The same object until it changes."""
        self._forget()
        try:
            self._table = self._tables.load(self._location)
        except Exception as error:
            if _java_class(error) == _ABSENT:
                return None
            raise
        self._transaction = self._table.newTransaction()
        metadata = self._transaction.startMetadata()
        self.properties = json.loads(self._mapper.writeValueAsString(metadata.properties()))
        place = self.properties.get(_DATA_PATH) or f"{metadata.location().rstrip('/')}/data"
        found = Facts(
            table_id=metadata.uuid(),
            format_version=metadata.formatVersion(),
            schema=self._schemas.toJson(metadata.schema()),
            spec=self._spec_text(metadata.spec()),
            data=place.rstrip("/"),
            encrypted=_ENCRYPTION_KEY in self.properties,
        )
        if found != self._facts:
            self._facts = found
        return self._facts

    def create(self, schema: Json, partition_by: Sequence[str]) -> None:
        """Make the table, unless it is there. Raises what Iceberg says of the schema."""
        columns = self._schemas.fromJson(json.dumps(schema))
        spec = self._specs.builderFor(columns)
        for name in partition_by:
            spec = spec.identity(name)
        try:
            self._tables.create(columns, spec.build(), None, _NEW_TABLE, self._location)
        except Exception as error:
            if _java_class(error) != _THERE:
                raise

    def add_columns(self, schema: Json) -> None:
        """Add the columns of a schema, as a commit of its own. Raises Conflict."""
        transaction = self._begun()
        columns = self._schemas.fromJson(json.dumps(schema))
        update = transaction.updateSchema()
        for field in schema["fields"]:
            update.addColumn(None, field["name"], columns.findType(field["name"]))
        update.commit()
        self._swap(transaction)

    def commit(
        self, files: Sequence[DataFile], properties: Mapping[str, str], note: str = ""
    ) -> None:
        """Add files and set properties, all at once. Raises Conflict; else the outcome is unknown.

        The files lie where `read` said. The note stands in the snapshot's summary.
        """
        transaction = self._begun()
        if files:
            append = transaction.newAppend()
            for file in self._data_files(files):
                append.appendFile(file)
            if note:
                append.set(_NOTE, note)
            append.commit()
        if properties:
            update = transaction.updateProperties()
            for name, value in properties.items():
                update.set(name, value)
            update.commit()
        self._swap(transaction)

    def files(self) -> list[TableFile]:
        """The files that make up the table, as it was read last."""
        return list(self._scanned(self._table))

    def snapshot(self) -> int | None:
        """The number of the snapshot that was read last; None: there is none."""
        found = self._table.currentSnapshot()
        return None if found is None else int(found.snapshotId())

    def replace(self, removed: Sequence[TableFile], added: Sequence[DataFile], since: int) -> None:
        """Replace files by others with the same rows. Raises Conflict, and Gone.

        `since` is the snapshot in which the files removed were read.
        """
        transaction = self._begun()
        rewrite = transaction.newRewrite().validateFromSnapshot(since)
        for old in self._parsed([file.json for file in removed]):
            rewrite.deleteFile(old)
        for new in self._data_files(added):
            rewrite.addFile(new)
        try:
            rewrite.commit()
        except Exception as error:
            if _java_class(error) == _INVALID:
                raise Gone(one_line(error)) from error
            raise
        self._swap(transaction)

    def expire(self, now_ms: int, most: int) -> int:
        """Forget snapshots that are older than the table keeps them, and delete what only they had.

        About `most` of them, the oldest; returns how many are left that are as old. Iceberg
        keeps the newest in any case, and what has a name.
        """
        metadata = json.loads(self._metadata_text(self._begun().startMetadata()))
        until = now_ms - int(self.properties.get(_KEPT_MS, _KEPT_MS_DEFAULT))
        times = sorted(each["timestamp-ms"] for each in metadata.get("snapshots", []))
        old = [time for time in times if time < until]
        if not old or self.properties.get(_NO_CLEANING, "true").lower() == "false":
            return 0
        if len(old) > most:
            until = old[most]
        self._table.expireSnapshots().expireOlderThan(until).commit()
        self._forget()
        return max(0, len(old) - most)

    def _begun(self) -> Any:
        if self._transaction is None:
            raise RuntimeError("the table was not read")
        return self._transaction

    def _swap(self, transaction: Any) -> None:
        """Put the metadata that was made in the place of what it was made from, if that is there.

        Not the transaction's own commit: after a conflict that one applies its changes again to
        what it then finds, without looking at our lines.
        """
        made = transaction.currentMetadata()
        try:
            transaction.underlyingOps().commit(transaction.startMetadata(), made)
        except Exception as error:
            if _java_class(error) == _CONFLICT:
                raise Conflict from error
            raise
        finally:
            self._forget()

    def _forget(self) -> None:
        self._table = self._transaction = None
        self.properties = {}

    def _data_files(self, files: Sequence[DataFile]) -> Iterator[Any]:
        """Ours as Iceberg's, with what it wants to know of their columns."""
        if self._facts is None:
            raise RuntimeError("the table was not read")
        place, number = self._facts.data, self._facts.spec_id
        table = self._transaction.table()
        spec, io = table.spec(), table.io()
        config = self._metrics_config(table)
        told = [_as_json(file, place, number) for file in files]
        for file, known in zip(files, self._parsed(told), strict=True):
            footer = io.newInputFile(f"{place}/{file.path}")
            metrics = self._metrics(footer, config)
            yield self._builder(spec).copy(known).withMetrics(metrics).build()

    def _parsed(self, files: Sequence[str]) -> Iterator[Any]:
        """Files of the JSON that Iceberg has for them, in which partitions keep their types."""
        nodes = self._mapper.readTree(f"[{','.join(files)}]")
        specs = self._transaction.table().specs()
        for index in range(len(files)):
            yield self._file(nodes.get(index), specs)

    def _scanned(self, table: Any) -> Iterator[TableFile]:
        tasks = table.newScan().planFiles()
        try:
            every = tasks.iterator()
            while every.hasNext():
                task = every.next()
                text = self._file_text(task.file(), task.spec())
                file = json.loads(text)
                yield TableFile(
                    path=file["file-path"],
                    num_bytes=file["file-size-in-bytes"],
                    spec_id=file["spec-id"],
                    partition=tuple(map(json.dumps, file.get("partition", []))),
                    has_deletes=not task.deletes().isEmpty(),
                    json=text,
                )
        finally:
            tasks.close()


def _as_json(file: DataFile, place: str, spec_id: int) -> str:
    """A file in the JSON of Iceberg's REST specification, but for what its footer says."""
    values = ",".join(value or "null" for value in file.partition.values())
    known = {
        "spec-id": spec_id,
        "content": "data",
        "file-path": f"{place}/{file.path}",
        "file-format": "parquet",
        "file-size-in-bytes": file.num_bytes,
        "record-count": file.num_rows,
    }
    text = json.dumps(known)
    return f'{text[:-1]},"partition":[{values}]}}' if values else text


def _java_class(error: Exception) -> str | None:
    """The name of the Java exception behind an error; None if there is none."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - see sinks/__init__

    if not isinstance(error, Py4JJavaError):
        return None
    return str(error.java_exception.getClass().getName())
