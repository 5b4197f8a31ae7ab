"""Names in SQL: checked once, and quoted wherever they are used. Pure."""

from typing import NamedTuple

from topology.errors import InvalidSchema

_LONGEST_BYTES = 63  # PostgreSQL cuts longer ones off, in silence
_ALLOWED = f"allowed are 1 to {_LONGEST_BYTES} bytes of UTF-8 without NUL"


class TableName(NamedTuple):
    """A table's name, with the schema that it is in; without one the search path decides."""

    schema: str | None
    table: str

    @property
    def quoted(self) -> str:
        """The name as SQL has it."""
        return ".".join(quoted(part) for part in self if part is not None)


def table_name(name: str) -> TableName:
    """The parts of "table" or "schema.table". Raises InvalidSchema."""
    if not isinstance(name, str):
        raise InvalidSchema(f"table {name!r}: found {type(name).__name__}; a name is a str")
    schema, dot, table = name.rpartition(".")
    if "." in schema:
        raise InvalidSchema(f"table {name!r}: found two dots; allowed is 'table' or 'schema.table'")
    where = f"table {name!r}"
    return TableName(
        checked_name(schema, where) if dot else None,
        checked_name(table, where),
    )


def checked_name(name: str, where: str) -> str:
    """The name itself, if it can be one of a table or a column. Raises InvalidSchema."""
    reason = _reason(name)
    if reason is not None:
        raise InvalidSchema(f"{where}: {reason} in the name {name!r}; {_ALLOWED}")
    return name


def quoted(name: str) -> str:
    """The name as an identifier in SQL, whatever it is."""
    return '"' + name.replace('"', '""') + '"'


def _reason(name: str) -> str | None:
    if not name:
        return "found nothing"
    if "\0" in name:
        return "found NUL"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "found half a character"
    return f"found {length} bytes" if length > _LONGEST_BYTES else None
