"""A PostgreSQL table whose connection, server, client or JVM goes away under a commit."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.embedded.postgres import EmbeddedPostgres
from sinks import SqlSink
from sinks.errors import DatabaseError, SparkDied
from sinks.spark.driver import SparkDriver
from sinks.spark.sql.connection import Connection
from tests.support.patience import seconds
from tests.worlds.sql_table import LINE, SqlTable, group, rows, write
from topology.errors import SinkBusy, SinkFenced
from topology.transactional import Committed, Fence, Staged

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server of the module's own, to be broken."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    server.open()
    yield server
    server.close()
    server.remove_data()


@pytest.fixture
def table(tmp_path: Path, server: EmbeddedPostgres, spark: SparkDriver) -> Iterator[SqlTable]:
    server.open()
    made = SqlTable(tmp_path, server, spark)
    yield made
    made.close()


@pytest.fixture
def sink(table: SqlTable) -> SqlSink[Any]:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    return sink


def around(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    *,
    before: Callable[[Connection], object] | None = None,
    after: Callable[[Connection], object] | None = None,
) -> None:
    """Do something before or right after the next such call of a connection's, once."""
    original = getattr(Connection, name)

    def call(self: Connection, *arguments: Any) -> Any:
        monkeypatch.setattr(Connection, name, original)
        if before is not None:
            before(self)
        result = original(self, *arguments)
        if after is not None:
            after(self)
        return result

    monkeypatch.setattr(Connection, name, call)


TERMINATE = """
SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
WHERE application_name = 'headrace pipeline/sink' AND pid <> pg_backend_pid()
"""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_connection_that_is_ended_inside_a_commit_leaves_it_done_or_not_and_that_can_be_read(
    table: SqlTable, sink: SqlSink[Any], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    staged = sink.stage(group(1, 1, 2))

    def cut_off(connection: Connection) -> None:
        table.sql(TERMINATE)
        connection.text("SELECT 1::text")  # what comes back is the end of the connection

    around(monkeypatch, "commit", **{"after" if after else "before": cut_off})
    with pytest.raises(DatabaseError):
        sink.commit(staged)
    assert sink.committed([LINE]) == [Committed(LINE, 1, int(after))]
    sink.commit(staged)
    assert table.numbers() == [1, 2]
    assert sink.committed([LINE]) == [Committed(LINE, 1, 1)]


def test_what_became_of_a_commit_is_told_only_when_the_old_transaction_is_over(
    table: SqlTable, sink: SqlSink[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is gone, and the server has yet to hear its COMMIT: nobody may read "not done"."""
    staged = sink.stage(group(1, 1))
    old: list[Connection] = []

    def lose_it(connection: Connection) -> None:
        old.append(connection)
        raise DatabaseError("08006", "An I/O error occurred while sending to the backend.")

    monkeypatch.setattr(Connection, "close", lambda self: None)  # the server does not notice
    around(monkeypatch, "commit", before=lose_it)
    with pytest.raises(DatabaseError):
        sink.commit(staged)
    told: list[Any] = []
    asking = threading.Thread(target=lambda: told.append(sink.committed([LINE])))
    asking.start()
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND application_name = 'headrace pipeline/sink'"
    )
    while table.sql(waiting) == "0":
        assert asking.is_alive()
    assert told == []
    monkeypatch.undo()
    table.spark.run(lambda _session: old[0].commit(), group="late")
    asking.join(seconds(60))
    assert told == [[Committed(LINE, 1, 1)]]
    assert table.numbers() == [1]
    table.spark.run(lambda _session: old[0].close(), group="late")


def test_a_server_that_is_killed_and_comes_back_is_found_again(
    table: SqlTable, server: EmbeddedPostgres, sink: SqlSink[Any]
) -> None:
    """Promise 15: it waits, and nothing comes twice."""
    at_least_once = table.sink()
    write(at_least_once, rows(7))
    staged = sink.stage(group(1, 1, 2))
    sink.commit(staged)
    server.kill()
    for work in (
        lambda: sink.commit(sink.stage(group(2, 3))),
        lambda: sink.committed([LINE]),
        lambda: write(at_least_once, rows(8)),
    ):
        with pytest.raises(DatabaseError):
            work()
    server.open()
    assert sink.committed([LINE]) == [Committed(LINE, 1, 1)]
    sink.commit(staged)
    sink.commit(sink.stage(group(2, 3)))
    write(at_least_once, rows(8))
    assert sorted(table.numbers()) == [1, 2, 3, 7, 8]


def test_a_server_that_stands_still_is_not_waited_for_without_end(
    table: SqlTable,
    server: EmbeddedPostgres,
    sink: SqlSink[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged = sink.stage(group(1, 1))
    monkeypatch.setattr("sinks.spark.sql.database.TRANSACTION_SECONDS", 1.0)
    server.freeze()
    try:
        with pytest.raises(DatabaseError):
            sink.commit(staged)
    finally:
        server.thaw()
    monkeypatch.undo()
    assert sink.committed([LINE]) == [Committed(LINE, 1, 0)]
    sink.commit(staged)
    assert table.numbers() == [1]


def stopped(
    table: SqlTable, monkeypatch: pytest.MonkeyPatch, place: str, staged: Staged, sink: SqlSink[Any]
) -> tuple[threading.Thread, threading.Event, list[Exception]]:
    """A sink whose process stands still in the midst of a commit, until it may go on."""
    reached, goes_on = threading.Event(), threading.Event()
    ended: list[Exception] = []

    def stand_still(_connection: Connection) -> None:
        reached.set()
        assert goes_on.wait(seconds(60))

    def commit() -> None:
        try:
            sink.commit(staged)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            ended.append(error)

    around(monkeypatch, place, before=None if place == "copy" else stand_still,
           after=stand_still if place == "copy" else None)  # fmt: skip
    zombie = threading.Thread(target=commit)
    zombie.start()
    assert reached.wait(seconds(60))
    return zombie, goes_on, ended


def test_a_zombie_that_stands_still_while_it_sends_rows_holds_up_nobody_and_is_refused(
    table: SqlTable, sink: SqlSink[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 9."""
    zombie, goes_on, ended = stopped(table, monkeypatch, "copy", sink.stage(group(1, 1)), sink)
    successor = table.sink(exactly_once=True)
    assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 0)]
    successor.commit(successor.stage(group(1, 2, epoch=2)))
    goes_on.set()
    zombie.join(seconds(60))
    assert [type(error) for error in ended] == [SinkFenced]
    assert table.numbers() == [2]
    assert successor.committed([LINE]) == [Committed(LINE, 2, 1)]


def test_a_zombie_that_stands_still_with_the_locks_loses_them_after_a_while(
    table: SqlTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 9: the server ends a transaction whose client says nothing more."""
    monkeypatch.setattr(
        "sinks.spark.sql.connection.BEGIN",
        "SELECT set_config('idle_in_transaction_session_timeout', '500ms', true),"
        "set_config('lock_timeout', '100ms', true)",
    )
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    zombie, goes_on, ended = stopped(table, monkeypatch, "commit", sink.stage(group(1, 1)), sink)
    successor = table.sink(exactly_once=True)
    for _ in range(600):
        try:
            told = successor.fence([Fence(LINE, 2)])
        except SinkBusy:
            continue
        break
    assert told == [Committed(LINE, 2, 0)]
    goes_on.set()
    zombie.join(seconds(60))
    assert [type(error) for error in ended] == [DatabaseError]
    assert table.numbers() == []
    with pytest.raises(SinkFenced):
        sink.commit(sink.stage(group(1, 1)))
    with pytest.raises(SinkFenced):
        sink.fence([Fence(LINE, 1)])


def test_the_control_that_commits_rows_and_txids_apart_does_show_duplicates(
    table: SqlTable, sink: SqlSink[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = sink.stage(group(1, 1, 2))
    found = Connection.copy

    def copy_and_commit(self: Connection, sql: str, path: Path) -> None:
        found(self, sql, path)
        self.commit()
        self.close()  # as if the process ended here

    monkeypatch.setattr(Connection, "copy", copy_and_commit)
    with pytest.raises(DatabaseError):
        sink.commit(staged)
    monkeypatch.undo()
    assert sink.committed([LINE]) == [Committed(LINE, 1, 0)]
    sink.commit(staged)
    assert table.numbers() == [1, 1, 2, 2]


def test_a_jvm_killed_inside_a_commit_leaves_it_done_and_that_can_be_read(
    table: SqlTable, sink: SqlSink[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 15: with Spark away it restarts Spark; the connection was the dead JVM's."""
    staged = sink.stage(group(1, 1, 2))

    def kill(connection: Connection) -> None:
        assert table.spark._jvm is not None
        process: subprocess.Popen[bytes] = table.spark._jvm.process
        process.kill()
        process.wait()
        connection.text("SELECT 1::text")  # the reply to COMMIT is lost with the JVM

    around(monkeypatch, "commit", after=kill)
    with pytest.raises(SparkDied):
        sink.commit(staged)
    assert sink.committed([LINE]) == [Committed(LINE, 1, 1)]
    sink.commit(staged)
    sink.commit(sink.stage(group(2, 3)))
    assert table.numbers() == [1, 2, 3]
