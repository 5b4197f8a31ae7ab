"""The schema as Spark has it, and that of a table that is there already.

Spark appends any Parquet to any folder of Parquet, and only readers notice: so they are
compared once, when the sink is opened.
"""

from typing import Any

import pyarrow as pa

from topology.errors import InvalidSchema

_ABSENT = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "DELTA_TABLE_NOT_FOUND")


def spark_schema(schema: pa.Schema) -> Any:
    """The Spark schema of a pyarrow schema. Raises InvalidSchema, naming the column."""
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415 - see sinks/__init__
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    fields = []
    for field in schema:
        try:
            kind = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        except PySparkTypeError as error:
            raise InvalidSchema(
                f"column '{field.name}': found {field.type}; Spark has no such type"
            ) from error
        fields.append(StructField(field.name, kind, nullable=True))
    return StructType(fields)


def arrow_schema(found: Any) -> pa.Schema:
    """A Spark schema as Arrow has it; null is the type of what Arrow has not.

    Within a column anything may be null: so Spark writes it, whatever a table's rows are.
    """
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415

    def kind(spark_type: Any) -> pa.DataType:
        try:
            return to_arrow_type(spark_type)
        except PySparkTypeError:
            return pa.null()

    inner = [each.dataType for each in found.toNullable().fields]
    return pa.schema(
        [
            pa.field(each.name, kind(its), each.nullable)
            for each, its in zip(found.fields, inner, strict=True)
        ]
    )


def existing_schema(session: Any, kind: str, path: str) -> pa.Schema | None:
    """The schema of the table at a path, or None when there is none yet."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    try:
        return arrow_schema(session.read.format(kind).load(path).schema)
    except AnalysisException as error:
        if error.getCondition() in _ABSENT:
            return None
        raise
