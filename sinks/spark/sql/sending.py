"""Rows into a table, within a transaction; and finding those that the table refuses."""

import json
from pathlib import Path

from sinks.errors import DatabaseError
from sinks.spark.sql.connection import Connection
from sinks.spark.sql.load import Load
from sinks.spark.sql.postgres import (
    BACK,
    CHECK_AT_ONCE,
    REFUSED,
    SAVEPOINT,
    Statements,
    verdict,
)


class Sending:
    """The way of rows into a table, in one transaction of a connection.

    In two steps: `bring` sends the rows and holds up nobody who writes other rows; `merge` then
    changes the rows that are there, as statements of the server's own. Plain rows are appended
    by the first step.
    """

    def __init__(
        self, connection: Connection, statements: Statements, *, by_key: bool, one_by_one: bool
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._by_key = by_key
        self._one_by_one = one_by_one

    def bring(self, path: Path) -> None:
        """Send the rows of a file: into the table, or into a temporary one."""
        if self._one_by_one:
            self._connection.execute(self._statements.make_each)
            self._connection.copy(self._statements.copy_each, path)
        elif self._by_key:
            self._connection.execute(self._statements.make_temporary)
            self._connection.copy(self._statements.copy_temporary, path)
        else:
            self._connection.copy(self._statements.copy, path)

    def merge(self) -> dict[int, str]:
        """Put what was brought in place. One by one, says which rows were refused, by place.

        Then deferred constraints are checked at once, too.
        """
        if self._one_by_one:
            self._connection.execute(CHECK_AT_ONCE)
            self._connection.execute(self._statements.put_each)
            found = json.loads(self._connection.text(REFUSED) or "[]")
            return {place: said.strip() for place, said in found}
        if self._by_key:
            if (delete := self._statements.delete) is not None:
                self._connection.execute(delete)
            self._connection.execute(self._statements.upsert)
        return {}


def trial(
    connection: Connection, statements: Statements, load: Load, *, by_key: bool
) -> dict[int, str] | None:
    """Put rows into the table, which is to be undone; None: it takes them all.

    Else it was done again one by one, and the rows that were refused are returned by place.
    """
    connection.execute(CHECK_AT_ONCE)
    connection.execute(SAVEPOINT)
    try:
        sending = Sending(connection, statements, by_key=by_key, one_by_one=False)
        sending.bring(load.file())
        sending.merge()
    except DatabaseError as error:
        if verdict(error.state) != "refused":
            raise
        connection.execute(BACK)
    else:
        return None
    sending = Sending(connection, statements, by_key=by_key, one_by_one=True)
    sending.bring(load.file())
    return sending.merge()
