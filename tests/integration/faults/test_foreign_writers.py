"""S16: two foreign writers beside a sink that commits, and changes hands; nothing is lost.

FOREIGN_MINUTES says how long.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.embedded.postgres import EmbeddedPostgres
from sinks.spark.driver import SparkDriver
from sinks.tables.delta import DeltaLog
from sinks.tables.iceberg import IcebergLog
from sinks.tables.log import Conflict
from tests.acceptance import evidence, table_files
from tests.worlds import delta_table, iceberg_table
from topology.errors import SinkBusy
from topology.sink import Committed, Fence

MINUTES = float(os.environ.get("FOREIGN_MINUTES", "10"))

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(120 * MINUTES + 600),
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LINE = delta_table.LINE
PAUSE_SECONDS = 0.1  # between our commits, so that theirs may succeed at times
TURN = 50  # transactions of one owner
THEIRS = 1_000_000  # their numbers begin here
RETAINED_HOURS = 0.03  # no file of ours waits so long for its commit

EXPIRE = (
    "CALL lake.system.expire_snapshots(table => 'OURS', "
    "older_than => TIMESTAMP '2999-01-01', retain_last => 10)"
)


class Foreign:
    """A writer that appends a row and does something else, in turn, until `ends`."""

    def __init__(self, first: int, sql: Callable[..., None], other: Sequence[str]) -> None:
        self.numbers: list[int] = []
        self.failed: Counter[str] = Counter()
        self._first, self._sql, self._other = first, sql, other

    def work(self, ends: threading.Event) -> None:
        while not ends.is_set():
            number = self._first + len(self.numbers)
            if self._tried(f"INSERT INTO OURS SELECT {number}L, 'theirs'"):
                self.numbers.append(number)
            for statement in self._other:
                self._tried(statement)

    def _tried(self, statement: str) -> bool:
        """Whether it did; what it says of a conflict changes nothing."""
        try:
            self._sql(statement)
        except Exception as error:
            said = str(error)
            if not any(word in said for word in ("Concurrent", "CommitFailed", "branch main has")):
                raise
            self.failed[statement.partition("(")[0]] += 1
            return False
        return True


@pytest.fixture
def conflicts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often our commits were refused."""
    found: Counter[str] = Counter()
    for log in (DeltaLog, IcebergLog):
        original: Callable[..., Any] = log.commit

        def commit(*given: Any, original: Callable[..., Any] = original) -> Any:
            try:
                return original(*given)
            except Conflict:
                found["conflicts"] += 1
                raise

        monkeypatch.setattr(log, "commit", commit)
    return found


def beside(make: Callable[[], Any], group: Callable[..., Any], foreign: Sequence[Foreign]) -> int:
    """Commit while they work; each owner in its turn. How many transactions there are."""
    ends = threading.Event()
    txid, sink = 0, make()
    sink.fence([Fence(LINE, 1)])
    with ThreadPoolExecutor(len(foreign)) as pool:
        theirs = [pool.submit(each.work, ends) for each in foreign]
        try:
            over = time.monotonic() + 60 * MINUTES
            while time.monotonic() < over and not any(each.done() for each in theirs):
                epoch = 1 + txid // TURN
                if txid and txid % TURN == 0:
                    sink.close()
                    sink = make()
                    done(partial(sink.fence, [Fence(LINE, epoch)]))
                txid += 1
                staged = sink.stage(group(txid, txid, epoch=epoch))
                done(partial(sink.commit, staged))
                time.sleep(PAUSE_SECONDS)
        finally:
            ends.set()
        for each in theirs:
            each.result()
    assert make().committed([LINE]) == [Committed(LINE, 1 + (txid - 1) // TURN, txid)]
    return txid


def done(work: Callable[[], object]) -> None:
    """Try as the writer does while the sink is busy."""
    while True:
        try:
            work()
        except SinkBusy as busy:
            time.sleep(busy.after_seconds)
        else:
            return


def check(txids: int, foreign: Sequence[Foreign], conflicts: Counter[str], *found: Any) -> None:
    """Every row is there once, whoever reads."""
    theirs = [number for each in foreign for number in each.numbers]
    print(  # noqa: T201
        f"{MINUTES:g} minutes: {txids} transactions, {conflicts['conflicts']} conflicts, "
        f"{len(theirs)} foreign rows, foreign failures {[dict(each.failed) for each in foreign]}"
    )
    assert theirs
    for table in found:
        assert Counter(table["number"].to_pylist()) == Counter([*range(1, txids + 1), *theirs])


def test_spark_appends_optimizes_and_vacuums_beside_a_delta_sink(
    tmp_path: Path, spark: SparkDriver, conflicts: Counter[str]
) -> None:
    """Promise 14: conflicts are tried again."""
    table = delta_table.Table(tmp_path, spark)

    def sql(statement: str) -> None:
        unchecked = "SET spark.databricks.delta.retentionDurationCheck.enabled = false"
        table.sql(unchecked, statement.replace(" OURS", " TABLE_PATH"))

    foreign = [
        Foreign(THEIRS, sql, ["OPTIMIZE OURS"]),
        Foreign(2 * THEIRS, sql, [f"VACUUM OURS RETAIN {RETAINED_HOURS} HOURS"]),
    ]
    txids = beside(lambda: table.sink(exactly_once=True), delta_table.group, foreign)
    check(txids, foreign, conflicts, table.read(), evidence.read_table(table.path))


def test_spark_appends_rewrites_and_expires_beside_an_iceberg_sink(
    tmp_path: Path, spark: SparkDriver, postgres: EmbeddedPostgres, conflicts: Counter[str]
) -> None:
    """Promise 14: conflicts are tried again."""
    table = iceberg_table.SparkTable(tmp_path, spark, postgres)
    foreign = [
        Foreign(THEIRS, table.sql, ["CALL lake.system.rewrite_data_files(table => 'OURS')"]),
        Foreign(2 * THEIRS, table.sql, [EXPIRE]),
    ]
    txids = beside(table.sink, iceberg_table.group, foreign)
    location = table.theirs().metadata_location
    check(txids, foreign, conflicts, table.read(), table_files.read_iceberg(location))
    table.close()
