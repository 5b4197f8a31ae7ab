"""Which columns a table may be partitioned by."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from topology.errors import InvalidSchema


def check_partitions(
    table: str,
    schema: pa.Schema,
    names: Sequence[str],
    can_partition: Callable[[pa.DataType], bool],
    *,
    leaves_some: bool,
) -> None:
    """Raise InvalidSchema when rows of a schema cannot be partitioned by these columns.

    `leaves_some`: files lack the columns of their partition, so there has to be another one.
    """
    known = schema.names
    if not set(names) <= set(known) or len(set(names)) != len(names):
        what = f"allowed are some of the columns {', '.join(known)}, each once"
    elif leaves_some and len(names) == len(known):
        what = "a column that is no partition is needed"
    else:
        fields = [schema.field(name) for name in names]
        wrong = [field for field in fields if not can_partition(field.type)]
        if not wrong:
            return
        what = f"column '{wrong[0].name}' is {wrong[0].type}, whose values are no partitions"
    raise InvalidSchema(f"table '{table}': partition_by is {[*names]}; {what}")
