"""A state's rows out of their table and back, with a connection that only takes notes."""

from pathlib import Path

import pyarrow as pa
import pytest

from sinks.spark.spool import Spool
from sinks.spark.sql.postgres import Statements
from sinks.spark.sql.state_rows import StateRows
from sinks.spark.sql.state_statements import StateStatements
from topology.errors import SinkFailed

SCHEMA = pa.schema([("word", pa.string()), ("_line", pa.string()), ("n", pa.int64())])
KEY = ["word", "_line"]
STATEMENTS = Statements("s", "words", SCHEMA.names, KEY)
READING = StateStatements(STATEMENTS.table, SCHEMA, KEY)


class Connection:
    """Notes what it is asked, with what is sent, and answers a COPY."""

    def __init__(self, answer: str = "") -> None:
        self.heard: list[str] = []
        self._answer = answer

    def execute(self, sql: str) -> int:
        self.heard.append(sql)
        return 0

    def copy(self, sql: str, path: Path) -> None:
        self.heard += [sql, path.read_text()]

    def save(self, sql: str, path: Path) -> None:
        self.heard.append(sql)
        path.write_text(self._answer)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(str(tmp_path), "test")
    spool.open()
    return spool


def rows_of(connection: Connection, spool: Spool) -> StateRows:
    return StateRows(connection, STATEMENTS, SCHEMA, spool)  # type: ignore[arg-type]


def test_keys_are_sent_and_their_rows_come_back(spool: Spool) -> None:
    connection = Connection('"",t[0],4\n')
    keys = pa.table({"word": ["", "a\tb"], "_line": ["t[0]"] * 2})
    found = rows_of(connection, spool).stored(keys)
    assert found.to_pylist() == [{"word": "", "_line": "t[0]", "n": 4}]
    assert connection.heard == [
        READING.make_keys,
        READING.copy_keys,
        "\tt[0]\na\\tb\tt[0]\n",
        READING.rows_of_keys,
    ]


def test_rows_are_numbered_and_sent_before_any_is_merged(spool: Spool) -> None:
    connection = Connection()
    rows = rows_of(connection, spool)
    rows.bring(pa.table({"word": ["a"], "_line": ["t[0]"], "n": [None]}, SCHEMA))
    sent = [STATEMENTS.make_temporary, STATEMENTS.copy_temporary, "0\ta\tt[0]\t\\N\n"]
    assert connection.heard == sent
    rows.merge()
    assert connection.heard == [*sent, STATEMENTS.upsert]


def test_a_value_that_became_one_that_the_database_has_not_is_not_sent(spool: Spool) -> None:
    connection = Connection()
    made = pa.table({"word": ["a"], "_line": ["t[0]"], "low": ["\0"]})
    with pytest.raises(SinkFailed, match="column 'low': found NUL in a text"):
        rows_of(connection, spool).bring(made)
    assert connection.heard == []


def test_a_value_that_cannot_be_read_back_ends_the_run(spool: Spool, tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match=r'table "s"."words": column \'n\' has a value that is no'):
        rows_of(Connection("a,t[0],infinity\n"), spool).every()
    assert list(tmp_path.glob(".spool/*/files/*")) == []


def test_no_file_is_left(spool: Spool, tmp_path: Path) -> None:
    connection = Connection()
    rows = rows_of(connection, spool)
    rows.bring(rows.every())
    rows.stored(pa.table({"word": ["a"]}))
    assert list(tmp_path.glob(".spool/*/files/*")) == []
