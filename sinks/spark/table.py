"""Tables in a warehouse, appended to by Spark."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from sinks.columns import fit
from sinks.files.bad_rows import write_good_rows
from sinks.files.layout import empty_texts
from sinks.names import checked_columns, checked_table
from sinks.paths import check_kind, local_uri, table_folder, table_path
from sinks.spark.existing import differences, existing_schema, spark_schema
from sinks.spark.reasons import one_line
from sinks.spark.settings import local_options
from sinks.spark.spool import Spool
from sinks.spark.writable import needing_to_write, try_out
from topology.errors import InvalidSchema, RowsRejected, SinkFailed
from topology.schema import schema_of
from topology.sink import Batch, Row, Sink, SinkContext, SparkDriver


class SparkTableSink(Sink[Row]):
    """Appends micro-batches to a table with Spark; at least once.

    A batch becomes durable as a whole, in one Spark job. `table` is a path below the
    warehouse, or an absolute path or URI. Every column may be null in the table itself, as
    Spark has it; that the schema's other columns never are is checked before.
    """

    needs_spark = True
    format: ClassVar[str]
    made_by: ClassVar[str]  # the sink that makes such tables
    added_columns: bool  # whether rows may bring columns the table has not
    merges_columns = False  # whether Spark is to add such columns to the table
    guessed_partitions: ClassVar[bool]  # whether Spark guesses partition columns' types

    def __init__(
        self, table: str, *, schema: type[Any] | pa.Schema, partition_by: Sequence[str] = ()
    ) -> None:
        """Raises InvalidSchema when the schema cannot be used."""
        self.name = self.table = checked_table(table)
        self.schema = checked_columns(schema_of(schema), table)
        self.stored = self.schema  # what the table has of it
        self.partition_by = [partition_by] if isinstance(partition_by, str) else [*partition_by]
        self._check_partitions()
        self._path: str | None = None
        self._spark: SparkDriver | None = None
        self._spool: Spool | None = None
        self._spark_schema: Any = None

    @property
    def path(self) -> str | None:
        """Where the table lies; None before `open`."""
        return self._path

    def _check_partitions(self) -> None:
        names = self.stored.names
        unknown = [name for name in self.partition_by if name not in names]
        if unknown or len(self.partition_by) == len(names):
            raise InvalidSchema(
                f"table '{self.table}': partition_by is {self.partition_by}; allowed are some, and "
                f"not all, of the columns {', '.join(names)}"
            )

    def open(self, context: SinkContext) -> None:
        """Check that the warehouse can be written, start Spark, and look at the table.

        Raises SinkFailed: the place cannot be written, links lead out of the warehouse, there is
        a table of another kind, Spark does not start, a column's type is none of Spark's, or the
        table there has other columns.
        """
        if context.spark is None:
            raise SinkFailed(f"table '{self.table}' needs Spark; none was configured")
        folder = table_folder(context.warehouse, self.table)
        self._path = table_path(context.warehouse, self.table)
        self._spark = context.spark
        self._spool = Spool(context.warehouse, f"{context.pipeline}.{context.sink}")
        with needing_to_write(self.table, context.warehouse):
            self._spool.open()
            if folder is not None:
                check_kind(self.table, folder, self.made_by)
                try_out(folder)
        try:
            self._spark_schema = spark_schema(self.stored)
            wrong = self._spark.run(self._obstacles, group=f"{self.name}-open")
        except Exception as error:
            raise SinkFailed(f"table '{self.table}': {one_line(error)}") from error
        if wrong:
            raise SinkFailed(f"table '{self.table}' at {self._path}: {'; '.join(wrong)}")

    def write(self, batch: Batch) -> None:
        """Append the batch's rows. Raises RowsRejected, SinkFailed, or a passing error.

        1. Convert the rows, setting those that do not fit apart.
        2. Write the others to the spool.
        3. Let Spark read the spool and append it to the table, in one job.
        4. Remove the spool's files, and name the rows that did not fit.
        """
        if self._spark is None or self._spool is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        spool = self._spool
        fitted = fit(batch.pieces, self.schema)
        fitted = fitted.without(empty_texts(fitted.table, self.schema, self.partition_by))
        files, fitted = write_good_rows(
            fitted,
            lambda rows: spool.put(rows, str(batch.sequence)) if rows.num_rows else [],
            spool.remove,
        )
        if files:
            try:
                self._append([local_uri(path) for path in files])
            finally:
                spool.remove(files)
        if fitted.rejected:
            raise RowsRejected(fitted.rejected)

    def close(self) -> None:
        """Remove the spool. Spark itself belongs to the service."""
        if self._spool is not None:
            self._spool.close()
        self._spark = None

    def _append(self, uris: list[str]) -> None:
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - see sinks/__init__

        if self._spark is None:
            raise SinkFailed(f"table '{self.table}' is not open")

        def job(session: Any) -> None:
            rows = session.read.schema(self._spark_schema).parquet(*uris)
            writer = rows.write.format(self.format).mode("append")
            writer = writer.options(**local_options(str(self._path)))
            if self.partition_by:
                writer = writer.partitionBy(*self.partition_by)
            if self.merges_columns:
                writer = writer.option("mergeSchema", "true")
            writer.save(self._path)

        try:
            self._spark.run(job, group=self.name)
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                raise  # the spool was cleaned up under us: the next try writes it again
            raise SinkFailed(
                f"table '{self.table}': Spark refuses to append: {one_line(error)}"
            ) from error

    def _append_nothing(self) -> None:
        """Have Spark append no rows: a table that is not there is made."""
        if self._spool is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        files = self._spool.put(self.stored.empty_table(), "0")
        try:
            self._append([local_uri(path) for path in files])
        finally:
            self._spool.remove(files)

    def _files_by_spark(self) -> list[str]:
        """The table's files as Spark finds them; none if there is no table."""
        if self._spark is None:
            raise SinkFailed(f"table '{self.table}' is not open")

        def job(session: Any) -> list[str]:
            if existing_schema(session, self.format, str(self._path)) is None:
                return []
            return [*session.read.format(self.format).load(self._path).inputFiles()]

        return self._spark.run(job, group=f"{self.name}-files")

    def _unmakable(self) -> list[str]:
        """What keeps a table of this schema from being made."""
        return []

    def _obstacles(self, session: Any) -> list[str]:
        """What keeps rows of this schema out of the table that is there, if one is."""
        found = existing_schema(session, self.format, str(self._path))
        if found is None:
            return self._unmakable()
        return differences(
            found,
            self._spark_schema,
            ignored=self.partition_by if self.guessed_partitions else (),
            added_columns=self.added_columns,
        )
