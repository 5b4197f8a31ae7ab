"""S10: a write to PostgreSQL that is cut off in the middle of its rows leaves none of them."""

import threading
from collections.abc import Callable

import psycopg
import pytest

from tests.support.batches import LINE, group, rows
from tests.support.patience import seconds, until
from tests.support.postgres_table import PostgresTable
from topology.sink import Batch, Committed, Fence

pytestmark = pytest.mark.faults

ROWS = 400_000
SECONDS = seconds(120.0)
COPYING = "SELECT count(*) FROM pg_stat_progress_copy WHERE tuples_processed > 1000"
TERMINATE = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_progress_copy"
COUNT = "SELECT count(*) || ' ' || count(DISTINCT number) FROM %T"


@pytest.fixture
def table(postgres):
    made = PostgresTable(postgres)
    yield made
    made.close()


def cut_off(table: PostgresTable, work: Callable[[], object]) -> list[BaseException]:
    """Do the work, and end its connection in the middle of its rows; what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is looked at by the test
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(
        "rows are on their way", lambda: table.sql(COPYING) != 0 or not thread.is_alive(), SECONDS
    )
    assert thread.is_alive(), "it was done before it could be cut off"
    table.sql(TERMINATE)
    thread.join(SECONDS)
    assert not thread.is_alive()
    return raised


@pytest.mark.parametrize("exactly_once", [False, True])
def test_write_cut_off_in_its_rows_is_written_once(table, exactly_once):
    sink = table.sink(exactly_once=exactly_once)
    sink.fence([Fence(LINE, 1)] if exactly_once else [])
    staged = [
        sink.stage(
            group(txid, *numbers) if exactly_once else Batch(txid, [rows(*numbers)], len(numbers))
        )
        for txid, numbers in enumerate([[-1], range(ROWS)], start=1)
    ]
    sink.commit(staged[0])
    (error,) = cut_off(table, lambda: sink.commit(staged[1]))
    assert isinstance(error, psycopg.Error)
    assert table.sql(COUNT) == "1 1"
    if exactly_once:
        assert sink.committed([LINE]) == [Committed(LINE, 1, 1)]
    sink.commit(staged[1])
    assert table.sql(COUNT) == f"{ROWS + 1} {ROWS + 1}"
