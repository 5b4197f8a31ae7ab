"""Which connection a transaction is run on, with a driver and connections that only take notes."""

from collections.abc import Callable
from typing import Any

import pytest

from sinks.errors import DatabaseError, SparkDied
from sinks.spark.sql import database
from sinks.spark.sql.database import Database
from sinks.spark.sql.place import place_of
from topology.errors import SinkFenced


class Connection:
    made: list["Connection"] = []  # noqa: RUF012 - cleared by `opened`

    def __init__(self, session: object, *_: object) -> None:
        self.session = session
        self.heard: list[str] = []
        Connection.made.append(self)

    def begin(self) -> None:
        self.heard.append("begin")

    def commit(self) -> None:
        self.heard.append("commit")

    def rollback(self) -> None:
        self.heard.append("rollback")

    def close(self) -> None:
        self.heard.append("close")

    def limited(self, seconds: float) -> "Connection":
        assert seconds == database.TRANSACTION_SECONDS
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Spark:
    """One session, until it dies."""

    session: object = "first"

    def run(self, job: Callable[[Any], Any], *, group: str) -> Any:
        assert group == "test"
        return job(self.session)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    monkeypatch.setattr(database, "Connection", Connection)
    Connection.made.clear()
    return Spark()


def opened(spark: Spark, examine: Callable[[Any], object] = lambda _: None) -> Database:
    return Database(spark, place_of("jdbc:postgresql:x"), "test", examine)  # type: ignore[arg-type]


def failing(error: BaseException) -> Callable[[Any], None]:
    def step(_connection: Any) -> None:
        raise error

    return step


def test_a_connection_is_examined_once_and_kept(spark: Spark) -> None:
    examined: list[Any] = []
    database = opened(spark, examined.append)
    assert [database.run(lambda _: "done", group="test") for _ in range(2)] == ["done"] * 2
    (connection,) = Connection.made
    assert examined == [connection]
    assert connection.heard == ["begin", "commit"] * 3
    database.close()
    database.close()
    assert connection.heard[6:] == ["close"]


def test_what_a_step_decides_is_undone_on_the_same_connection(spark: Spark) -> None:
    database = opened(spark)
    with pytest.raises(SinkFenced):
        database.run(failing(SinkFenced("orders[0]", 1, 2)), group="test")
    database.run(lambda _: None, group="test")
    (connection,) = Connection.made
    assert connection.heard == ["begin", "commit", "begin", "rollback", "begin", "commit"]


@pytest.mark.parametrize("error", [DatabaseError("23505", "no"), OSError("no"), SystemExit()])
def test_after_any_other_error_the_next_connection_is_a_new_one(
    spark: Spark, error: BaseException
) -> None:
    database = opened(spark)
    with pytest.raises(type(error)):
        database.run(failing(error), group="test")
    database.run(lambda _: None, group="test")
    first, second = Connection.made
    assert first.heard == ["begin", "commit", "begin", "close"]
    assert second.heard == ["begin", "commit"] * 2


def test_a_connection_of_another_session_is_not_used(spark: Spark) -> None:
    database = opened(spark)
    with pytest.raises(SparkDied):
        database.run(failing(SparkDied("test", "gone")), group="test")
    spark.session = "second"
    database.run(lambda _: None, group="test")
    assert [connection.session for connection in Connection.made] == ["first", "second"]
    assert Connection.made[0].heard[-1] == "close"


def test_a_connection_whose_table_is_refused_is_not_kept(spark: Spark) -> None:
    database = opened(spark, failing(DatabaseError("42501", "no right")))
    for _ in range(2):
        with pytest.raises(DatabaseError, match="no right"):
            database.run(lambda _: None, group="test")
    assert [connection.heard for connection in Connection.made] == [["begin", "close"]] * 2
