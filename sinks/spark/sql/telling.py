"""What the writer is told when a database refuses a statement. Pure."""

from typing import NoReturn

from sinks.errors import DatabaseError
from sinks.spark.sql.postgres import verdict
from topology.errors import SinkBusy, SinkFailed

_BUSY_SECONDS = 0.5


class RowsRefused(SinkFailed):
    """The database refuses rows of which this was not known when they were staged."""

    def __init__(self, said: str) -> None:
        super().__init__(f"{said}; after a restart they are found and rejected alone")


def tell(error: DatabaseError, table: str) -> NoReturn:
    """Raise what the contract of sinks has for it, or the error itself if it is a passing one."""
    means = verdict(error.state)
    if means == "passing":
        raise error
    said = f"table '{table}': {error}"
    if means == "busy":
        raise SinkBusy(_BUSY_SECONDS, said) from error
    if means == "refused":
        raise RowsRefused(said) from error
    raise SinkFailed(said) from error
