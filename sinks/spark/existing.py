"""The schema as Spark has it, and how it differs from that of a table that is there already.

Spark appends any Parquet to any folder of Parquet, and only readers notice: so it is
compared once, when the sink is opened.
"""

from collections.abc import Sequence
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


def existing_schema(session: Any, kind: str, path: str) -> Any:
    """The schema of the table at a path, or None when there is none yet."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    try:
        return session.read.format(kind).load(path).schema
    except AnalysisException as error:
        if error.getCondition() in _ABSENT:
            return None
        raise


def differences(
    found: Any, wanted: Any, *, ignored: Sequence[str], added_columns: bool
) -> list[str]:
    """What keeps rows of `wanted` out of a table of `found`, a sentence each; [] if nothing.

    `ignored` columns are not compared; with `added_columns` the table may lack some. The
    order of columns, whether they may be null, and columns only the table has are no
    difference: such columns become null.
    """
    there = {field.name: field.dataType for field in found.fields}
    alike = {name.lower(): name for name in there}
    wrong = []
    for field in wanted.fields:
        if field.name in ignored:
            continue
        kind = there.get(field.name)
        if kind is None:
            if field.name.lower() in alike:  # to Spark they are the same
                wrong.append(
                    f"column '{field.name}': found '{alike[field.name.lower()]}' in the table, "
                    "spelled differently"
                )
            elif not added_columns:
                wrong.append(
                    f"column '{field.name}' is not in the table; on_new_columns='add' would add it"
                )
        elif kind.simpleString() != field.dataType.simpleString():
            wrong.append(
                f"column '{field.name}': found {field.dataType.simpleString()}; "
                f"allowed is {kind.simpleString()}, as in the table"
            )
    return wrong
