"""S16: two foreign writers beside a sink that commits, and changes hands; nothing is lost.

FOREIGN_MINUTES says how long.
"""

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from sinks.tables.delta_log import DeltaLog
from sinks.tables.iceberg_log import IcebergLog
from sinks.tables.log import Conflict
from tests.acceptance import evidence, table_files
from tests.support import delta_table, iceberg_table
from tests.support.batches import LINE, group
from topology.errors import SinkBusy
from topology.sink import Committed, Fence

MINUTES = float(os.environ.get("FOREIGN_MINUTES", "10"))

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120 * MINUTES + 600)]

MOST_PAUSE_SECONDS = 1.0  # between what we read and our commit, drawn, so that theirs come there
APPENDS = 5  # of a foreign writer before it does something else
TURN = 50  # transactions of one owner
THEIRS = 1_000_000  # their numbers begin here
RETAINED = "'delta.deletedFileRetentionDuration' = 'interval 3 minutes'"  # VACUUM's own: hours

EXPIRE = (
    "CALL lake.system.expire_snapshots(table => 'OURS', "
    "older_than => TIMESTAMP '2999-01-01', retain_last => 10)"
)


class Foreign:
    """A writer that appends rows, one by one, and does something else, in turn, until `ends`."""

    def __init__(self, first: int, sql: Callable[..., None], other: str) -> None:
        self.numbers: list[int] = []
        self.succeeded, self.failed = Counter[str](), Counter[str]()
        self._first, self._sql, self._other = first, sql, other

    def work(self, ends: threading.Event) -> None:
        for turn in itertools.count(1):
            if ends.is_set():
                return
            number = self._first + len(self.numbers)
            if self._tried("append", f"INSERT INTO OURS SELECT {number}L, 'theirs'"):
                self.numbers.append(number)
            if turn % APPENDS == 0:
                self._tried("other", self._other)

    def _tried(self, what: str, statement: str) -> bool:
        """Whether it did; what it says of a conflict changes nothing."""
        try:
            self._sql(statement)
        except Exception as error:
            said = str(error)
            if not any(word in said for word in ("Concurrent", "CommitFailed", "branch main has")):
                raise
            self.failed[what] += 1
            return False
        self.succeeded[what] += 1
        return True


@pytest.fixture
def conflicts(monkeypatch):
    """How often our commits were refused; each comes some time after the log was read."""
    found, rng = Counter[str](), random.Random(1)
    for log in (DeltaLog, IcebergLog):
        original: Callable[..., Any] = log.commit

        def commit(*given: Any, original: Callable[..., Any] = original) -> Any:
            time.sleep(rng.uniform(0.0, MOST_PAUSE_SECONDS))
            try:
                return original(*given)
            except Conflict:
                found["conflicts"] += 1
                raise

        monkeypatch.setattr(log, "commit", commit)
    return found


def beside(make: Callable[[], Any], foreign: Sequence[Foreign]) -> int:
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
    theirs = [number for each in foreign for number in each.numbers]
    told = [f"{dict(each.succeeded)}, refused {dict(each.failed)}" for each in foreign]
    print(  # noqa: T201
        f"{MINUTES:g} minutes: {txids} transactions, {conflicts['conflicts']} conflicts, "
        f"{len(theirs)} foreign rows; they {' and '.join(told)}"
    )
    assert conflicts["conflicts"]
    assert all(each.succeeded["append"] and each.succeeded["other"] for each in foreign)
    for table in found:
        assert Counter(table["number"].to_pylist()) == Counter([*range(1, txids + 1), *theirs])


def test_spark_appends_optimizes_and_vacuums_beside_a_delta_sink(tmp_path, spark, conflicts):
    """Promise 14: conflicts are tried again."""
    table = delta_table.SparkTable(tmp_path, spark)

    def sql(statement: str) -> None:
        unchecked = "SET spark.databricks.delta.retentionDurationCheck.enabled = false"
        table.sql(unchecked, statement)

    table.fenced()
    sql(f"ALTER TABLE OURS SET TBLPROPERTIES ({RETAINED})")  # no file of ours waits so long
    foreign = [Foreign(THEIRS, sql, "OPTIMIZE OURS"), Foreign(2 * THEIRS, sql, "VACUUM OURS")]
    txids = beside(lambda: table.sink(exactly_once=True), foreign)
    check(txids, foreign, conflicts, table.read(), evidence.read_table(table.path))


def test_spark_writes_beside_an_iceberg_sink(tmp_path, spark, postgres, conflicts):
    """Promise 14: conflicts are tried again."""
    table = iceberg_table.SparkTable(tmp_path, spark, postgres)
    foreign = [
        Foreign(THEIRS, table.sql, "CALL lake.system.rewrite_data_files(table => 'OURS')"),
        Foreign(2 * THEIRS, table.sql, EXPIRE),
    ]
    txids = beside(table.sink, foreign)
    location = table.theirs().metadata_location
    check(txids, foreign, conflicts, table.read(), table_files.read_iceberg(location))
    table.close()
