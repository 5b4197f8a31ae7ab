"""A thread's way into a database: a connection that is kept as long as nothing goes wrong."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sinks.errors import DatabaseError
from sinks.spark.reasons import one_line
from sinks.spark.sql.connection import Connection
from sinks.spark.sql.place import Place
from sinks.spark.sql.postgres import TRANSACTION_SECONDS
from topology.errors import SinkError, SinkFailed
from topology.sink import SparkDriver

Result = TypeVar("Result")
_CLOSE_SECONDS = 2.0


class Database:
    """Runs transactions on one connection, which is opened when it is needed.

    One thread at a time. After any error but a SinkError of the transaction's own step, the
    connection is given up, since nobody knows what state it is in; so it is when Spark's JVM or
    session is another one. `examine` is called with each new connection, in a transaction of
    its own, before any other.
    """

    def __init__(
        self,
        spark: SparkDriver,
        place: Place,
        application: str,
        examine: Callable[[Connection], object],
    ) -> None:
        self._spark = spark
        self._place = place
        self._application = application
        self._examine = examine
        self._connection: Connection | None = None

    def run(self, step: Callable[[Connection], Result], *, group: str) -> Result:
        """Run a step in a transaction, and commit it; a step may roll it back itself.

        Raises DatabaseError, what the step raises, and what SparkDriver.run raises.
        """

        def job(session: Any) -> Result:
            try:
                return _transaction(self._connected(session), step)
            except DatabaseError:
                self._give_up()
                raise
            except SinkError:
                raise
            except BaseException:
                self._give_up()
                raise

        return self._spark.run(job, group=group)

    def connect(self, *, group: str) -> None:
        """Connect now, and not with the first transaction. Raises as `run`."""
        self.run(nothing, group=group)

    def close(self) -> None:
        """Let go of the connection; a JVM that does not answer is not waited for."""
        closing = threading.Thread(target=self._give_up, name="sql-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    def _connected(self, session: Any) -> Connection:
        if self._connection is not None and self._connection.session is session:
            return self._connection
        self._give_up()
        connection = Connection(session, self._place, self._application)
        try:
            _transaction(connection, self._examine)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@contextmanager
def opening(where: str, place: Place) -> Iterator[None]:
    """Raise SinkFailed, without what is secret, for all that fails while a table is opened."""
    try:
        yield
    except SinkFailed:
        raise
    except Exception as error:
        raise SinkFailed(f"{where}: {place.hide(one_line(error))}") from error


def nothing(connection: Connection) -> None:
    """Connecting was all, or there is nothing to examine."""
    del connection


def _transaction(connection: Connection, step: Callable[[Connection], Result]) -> Result:
    with connection.limited(TRANSACTION_SECONDS):
        connection.begin()
        try:
            result = step(connection)
        except DatabaseError:
            raise
        except SinkError:
            connection.rollback()
            raise
        connection.commit()
        return result
