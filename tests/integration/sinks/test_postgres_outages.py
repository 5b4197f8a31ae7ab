import threading
from typing import Any

import psycopg
import pytest

from examples.support.postgres_server import EmbeddedPostgres
from sinks import PostgresSink
from sinks.postgres.database import Database
from tests.acceptance import processes
from tests.support.batches import LINE, group, rows, write
from tests.support.delta_table import around
from tests.support.patience import seconds
from tests.support.postgres_table import PostgresTable
from topology.errors import SinkBusy, SinkFenced
from topology.sink import Committed, Fence, Staged

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    server.open()
    yield server
    server.close()
    server.remove_data()


@pytest.fixture
def table(server):
    server.open()
    made = PostgresTable(server)
    yield made
    made.close()


@pytest.fixture
def sink(table):
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    return sink


TERMINATE = """
SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
WHERE application_name = 'headrace pipeline/sink' AND pid <> pg_backend_pid()
"""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_commit_outcome_is_readable_after_a_lost_connection(table, sink, monkeypatch, after):
    staged = sink.stage(group(1, 1, 2))

    def cut_off(connection: psycopg.Connection[Any]) -> None:
        table.sql(TERMINATE)
        connection.execute("SELECT 1")  # what comes back is the end of the connection

    its = {"after" if after else "before": cut_off}
    around(monkeypatch, psycopg.Connection, "commit", **its)
    with pytest.raises(psycopg.Error):
        sink.commit(staged)
    assert sink.committed([LINE]) == [Committed(LINE, 1, int(after))]
    sink.commit(staged)
    assert table.numbers() == [1, 2]
    assert sink.committed([LINE]) == [Committed(LINE, 1, 1)]


def test_commit_outcome_waits_for_the_old_transaction(table, sink, monkeypatch):
    """The client is gone, and the server has yet to hear its COMMIT: nobody may read "not done"."""
    staged = sink.stage(group(1, 1))
    old: list[psycopg.Connection[Any]] = []

    def lose_it(connection: psycopg.Connection[Any]) -> None:
        old.append(connection)
        monkeypatch.setattr(connection, "close", lambda: None)
        raise psycopg.OperationalError("the network is gone, and the server does not notice")

    around(monkeypatch, psycopg.Connection, "commit", before=lose_it)
    with pytest.raises(psycopg.Error):
        sink.commit(staged)
    told: list[Any] = []
    asking = threading.Thread(target=lambda: told.append(sink.committed([LINE])))
    asking.start()
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND application_name = 'headrace pipeline/sink'"
    )
    while table.sql(waiting) == 0:
        assert asking.is_alive()
    assert told == []
    monkeypatch.undo()
    old[0].commit()
    asking.join(seconds(60))
    assert told == [[Committed(LINE, 1, 1)]]
    assert table.numbers() == [1]
    old[0].close()


def test_a_server_that_is_killed_and_comes_back_is_found_again(table, server, sink):
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
        with pytest.raises(psycopg.Error):
            work()
    server.open()
    assert sink.committed([LINE]) == [Committed(LINE, 1, 1)]
    sink.commit(staged)
    sink.commit(sink.stage(group(2, 3)))
    write(at_least_once, rows(8))
    assert sorted(table.numbers()) == [1, 2, 3, 7, 8]


def test_frozen_postgres_is_not_awaited_forever(table, server, sink, monkeypatch):
    staged = sink.stage(group(1, 1))
    monkeypatch.setattr("sinks.postgres.database.TRANSACTION_SECONDS", 1.0)
    processes.freeze_tree(server.pid)
    try:
        with pytest.raises(psycopg.Error):
            sink.commit(staged)
    finally:
        processes.thaw_tree(server.pid)
    monkeypatch.undo()
    assert sink.committed([LINE]) == [Committed(LINE, 1, 0)]
    sink.commit(staged)
    assert table.numbers() == [1]


def stopped(
    monkeypatch: pytest.MonkeyPatch, place: str, staged: Staged, sink: PostgresSink[Any]
) -> tuple[threading.Thread, threading.Event, list[Exception]]:
    """A sink whose process stands still in the midst of a commit, until it may go on."""
    reached, goes_on = threading.Event(), threading.Event()
    ended: list[Exception] = []

    def stand_still(_: object) -> None:
        reached.set()
        assert goes_on.wait(seconds(60))

    def commit() -> None:
        try:
            sink.commit(staged)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            ended.append(error)

    if place == "send":
        around(monkeypatch, Database, "_send", after=stand_still)
    else:
        around(monkeypatch, psycopg.Connection, "commit", before=stand_still)
    zombie = threading.Thread(target=commit)
    zombie.start()
    assert reached.wait(seconds(60))
    return zombie, goes_on, ended


def test_zombie_that_stalls_while_sending_rows_is_fenced(table, sink, monkeypatch):
    """Promise 9."""
    zombie, goes_on, ended = stopped(monkeypatch, "send", sink.stage(group(1, 1)), sink)
    successor = table.sink(exactly_once=True)
    assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 0)]
    successor.commit(successor.stage(group(1, 2, epoch=2)))
    goes_on.set()
    zombie.join(seconds(60))
    assert [type(error) for error in ended] == [SinkFenced]
    assert table.numbers() == [2]
    assert successor.committed([LINE]) == [Committed(LINE, 2, 1)]


def test_zombie_that_stalls_with_locks_loses_them(table, monkeypatch):
    """Promise 9: the server ends a transaction whose client says nothing more."""
    monkeypatch.setattr(
        "sinks.postgres.database.BEGIN",
        "BEGIN; SELECT set_config('idle_in_transaction_session_timeout', '500ms', true),"
        "set_config('lock_timeout', '100ms', true)",
    )
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    zombie, goes_on, ended = stopped(monkeypatch, "commit", sink.stage(group(1, 1)), sink)
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
    assert [type(error) for error in ended] == [psycopg.errors.IdleInTransactionSessionTimeout]
    assert table.numbers() == []
    with pytest.raises(SinkFenced):
        sink.commit(sink.stage(group(1, 1)))
    with pytest.raises(SinkFenced):
        sink.fence([Fence(LINE, 1)])
