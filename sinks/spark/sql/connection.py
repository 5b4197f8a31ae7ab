"""A connection to PostgreSQL by its JDBC driver, in Spark's JVM."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sinks.errors import DatabaseError
from sinks.spark.sql.place import Place
from sinks.spark.sql.postgres import BEGIN, DRIVER_PROPERTIES
from topology.errors import SinkFailed

_LONGEST_APPLICATION = 63  # PostgreSQL cuts longer names off
_NO_STATE = "08000"  # a connection exception


class Connection:
    """One connection, in one JVM; used within jobs of the SparkDriver, by one thread at a time.

    Nothing is committed before `commit`. What the database says is raised as DatabaseError,
    without secrets; after one the transaction takes no statement but `rollback`, unless it is
    taken back to a savepoint.
    """

    def __init__(self, session: Any, place: Place, application: str) -> None:
        """Connect. Raises DatabaseError, and SinkFailed if the driver does not take the URL."""
        self.session = session
        self._place = place
        self._jvm = session._jvm  # noqa: SLF001 - PySpark has no public way to Java
        self._types = self._jvm.py4j.reflection.TypeUtil
        properties = self._jvm.java.util.Properties()
        given = {
            **DRIVER_PROPERTIES,
            "ApplicationName": application[:_LONGEST_APPLICATION],
            "user": place.user,
            "password": place.password,
        }
        for name, value in given.items():
            if value is not None:
                properties.setProperty(name, value)
        with self._heard():
            # DriverManager does not see the jars of `spark.jars`; the gateway does.
            connection = self._jvm.org.postgresql.Driver().connect(place.url, properties)
            if connection is None:
                raise SinkFailed(f"{place.shown} is no address of PostgreSQL's driver")
            self._raw = connection
            self._raw.setAutoCommit(False)
            self._copies = self._raw.getCopyAPI()

    def begin(self) -> None:
        """Begin a transaction, with limits of time for what the server does in it."""
        self.execute(BEGIN)

    def execute(self, sql: str, *parameters: str) -> int:
        """Run a statement; returns the rows that it changed."""
        with self._heard():
            if not parameters:
                statement = self._raw.createStatement()
                statement.setEscapeProcessing(False)
                statement.execute(sql)
            else:
                statement = self._prepared(sql, parameters)
                statement.execute()
            count = int(statement.getUpdateCount())
            statement.close()
        return count

    def text(self, sql: str, *parameters: str) -> str | None:
        """Run a query; returns the first column of its first row, if there is one."""
        with self._heard():
            statement = self._prepared(sql, parameters)
            rows = statement.executeQuery()
            found = rows.getString(1) if rows.next() else None
            statement.close()
        return None if found is None else str(found)

    def copy(self, sql: str, path: Path) -> None:
        """Send a file as the input of a COPY."""
        with self._heard():
            stream = self._jvm.java.io.FileInputStream(str(path))
            try:
                self._copies.copyIn(sql, stream)
            finally:
                stream.close()

    def save(self, sql: str, path: Path) -> None:
        """Write the output of a COPY to a file."""
        with self._heard():
            io = self._jvm.java.io
            stream = io.BufferedOutputStream(io.FileOutputStream(str(path)))
            try:
                self._copies.copyOut(sql, stream)
            finally:
                stream.close()

    def commit(self) -> None:
        """Commit. After a DatabaseError of a broken connection the outcome is not known."""
        with self._heard():
            self._raw.commit()

    def rollback(self) -> None:
        """Undo what was not committed."""
        with self._heard():
            self._raw.rollback()

    @contextlib.contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Break the connection off if what is done within takes longer than that.

        The server's own limits end statements, and the driver's one waits for answers; but none
        ends a send to a server that takes nothing in.
        """
        watch = threading.Timer(seconds, self._abort)
        watch.name, watch.daemon = "sql-limit", True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def close(self) -> None:
        """Break the connection off: what was not committed is undone. Raises nothing."""
        with contextlib.suppress(Exception):  # it may be broken, or its JVM dead
            self._raw.close()

    def _prepared(self, sql: str, parameters: tuple[str, ...]) -> Any:
        statement = self._raw.prepareStatement(sql)
        for place, parameter in enumerate(parameters, start=1):
            statement.setString(place, parameter)
        return statement

    def _abort(self) -> None:
        with contextlib.suppress(Exception):
            self._raw.abort(self._jvm.java.util.concurrent.ForkJoinPool.commonPool())

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Turn what the driver raises into DatabaseError; what else goes wrong is passed on."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - see sinks/__init__

        try:
            yield
        except Py4JJavaError as error:
            raised = error.java_exception
            if not self._types.isInstanceOf("java.sql.SQLException", raised):
                raise
            state = str(raised.getSQLState() or _NO_STATE)
            said = self._place.hide(str(raised.getMessage() or "no message"))
            # The Java error's text is asked from the JVM whenever it is shown, secrets and all.
            raise DatabaseError(state, said) from None
