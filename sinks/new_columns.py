"""Columns that rows have and their table has not."""

from typing import Literal, TypeAlias, get_args

from topology.errors import InvalidSchema

OnNewColumns: TypeAlias = Literal["reject", "add"]


def checked_new_columns(value: str, table: str) -> OnNewColumns:
    """`on_new_columns`, as it was given. Raises InvalidSchema."""
    for allowed in get_args(OnNewColumns):
        if value == allowed:
            found: OnNewColumns = allowed
            return found
    names = " and ".join(f"'{each}'" for each in get_args(OnNewColumns))
    raise InvalidSchema(f"table '{table}': on_new_columns is {value!r}; allowed are {names}")
