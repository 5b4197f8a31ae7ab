"""The order of what is sent, and what is done when the table refuses it."""

from pathlib import Path

import pyarrow as pa
import pytest

from sinks.errors import DatabaseError
from sinks.spark.spool import Spool
from sinks.spark.sql.copy_text import encode
from sinks.spark.sql.load import Load
from sinks.spark.sql.postgres import BACK, CHECK_AT_ONCE, REFUSED, SAVEPOINT, Statements
from sinks.spark.sql.sending import Sending, trial

PLAIN = Statements("s", "t", ["n"], casts={"n": "bigint"})
BY_KEY = Statements("s", "t", ["n", "gone"], ["n"], "gone", {"n": "bigint"})


class Database:
    """Notes what it is asked, and refuses one statement."""

    def __init__(self, refuses: str = "", state: str = "23505") -> None:
        self.heard: list[str] = []
        self._refuses = refuses
        self._state = state

    def execute(self, sql: str) -> int:
        self.heard.append(sql)
        if sql == self._refuses:
            raise DatabaseError(self._state, "ERROR: no\n  Detail: it is there")
        return 0

    def copy(self, sql: str, path: Path) -> None:
        assert path.read_text() == "1\n2\n"
        self.execute(sql)

    def text(self, sql: str) -> str:
        self.heard.append(sql)
        return '[[1, "no it is there"]]'


@pytest.fixture
def load(tmp_path: Path) -> Load:
    spool = Spool(str(tmp_path), "test")
    spool.open()
    return Load(encode(pa.table({"n": pa.array([1, 2])})).lines, spool, "load")


def test_plain_rows_are_in_the_table_as_soon_as_they_are_sent(load: Load) -> None:
    database = Database()
    sending = Sending(database, PLAIN, by_key=False, one_by_one=False)  # type: ignore[arg-type]
    sending.bring(load.file())
    assert database.heard == [PLAIN.copy]
    assert sending.merge() == {}
    assert database.heard == [PLAIN.copy]


def test_rows_with_a_key_touch_the_table_only_when_they_are_merged(load: Load) -> None:
    database = Database()
    sending = Sending(database, BY_KEY, by_key=True, one_by_one=False)  # type: ignore[arg-type]
    sending.bring(load.file())
    assert database.heard == [BY_KEY.make_temporary, BY_KEY.copy_temporary]
    assert sending.merge() == {}
    assert database.heard[2:] == [BY_KEY.delete, BY_KEY.upsert]


def test_a_trial_that_is_taken_needs_no_second_one(load: Load) -> None:
    database = Database()
    assert trial(database, PLAIN, load, by_key=False) is None  # type: ignore[arg-type]
    assert database.heard == [CHECK_AT_ONCE, SAVEPOINT, PLAIN.copy]


def test_a_trial_that_is_refused_is_taken_back_and_made_row_by_row(load: Load) -> None:
    database = Database(BY_KEY.upsert)
    refused = trial(database, BY_KEY, load, by_key=True)  # type: ignore[arg-type]
    assert refused == {1: "no it is there"}
    assert database.heard[-6:] == [
        BACK,
        BY_KEY.make_each,
        BY_KEY.copy_each,
        CHECK_AT_ONCE,
        BY_KEY.put_each,
        REFUSED,
    ]


def test_what_is_no_refusal_is_passed_on(load: Load) -> None:
    with pytest.raises(DatabaseError, match=r"no \(SQLSTATE 08006\)") as caught:
        trial(Database(PLAIN.copy, "08006"), PLAIN, load, by_key=False)  # type: ignore[arg-type]
    assert caught.value.detail == "ERROR: no Detail: it is there"


def test_a_file_that_is_lost_is_written_again(load: Load) -> None:
    load.file().unlink()
    assert load.file().read_text() == "1\n2\n"
    load.remove()
    load.remove()
    others = load.without({0}, "other")
    assert others.file().read_text() == "2\n"
    assert others.one_by_one
