"""What a database says, and where it is: before any server is asked."""

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace import InvalidTopology
from headrace.sinks import PostgresSink
from sinks.postgres.database import verdict
from sinks.postgres.table import Facts, Statements, Wanted
from sinks.storage import Storage
from topology.errors import SinkFailed
from topology.sink import SinkContext

CONTEXT = SinkContext("pipeline", "sink", {}, Storage(""), None)
SCHEMA = pa.schema([("id", pa.int64())])


class Raised(psycopg.Error):
    def __init__(self, state: str) -> None:
        super().__init__()
        self.sqlstate = state


@pytest.mark.parametrize(
    ("state", "means"),
    [
        ("23505", "refused"),
        ("22001", "refused"),
        ("54000", "refused"),
        ("P0001", "refused"),
        ("44000", "refused"),
        ("SH013", "refused"),  # a trigger's own
        ("45000", "refused"),
        ("38001", "refused"),
        ("99999", "passing"),
        ("58030", "passing"),
        ("XX000", "passing"),
        ("22P04", "changed"),
        ("55P03", "busy"),
        ("57014", "busy"),
        ("40P01", "busy"),
        ("42703", "changed"),
        ("42501", "changed"),
        ("3F000", "changed"),
        ("57P01", "passing"),
        ("08006", "passing"),
        ("53100", "passing"),
        ("25006", "passing"),
    ],
)
def test_an_error_means_what_its_class_says(state: str, means: str) -> None:
    assert verdict(Raised(state)) == means


def test_what_is_no_answer_of_the_server_may_pass_but_a_value_that_cannot_be_read() -> None:
    assert verdict(psycopg.OperationalError("the connection is lost")) == "passing"
    assert verdict(psycopg.DataError("timestamp too large")) == "changed"


def test_a_jdbc_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidTopology, match="PostgresSink: found a URL of JDBC's; allowed") as no:
        PostgresSink("jdbc:postgresql://root:secret@db/shop", "orders", schema=SCHEMA)
    assert "secret" not in str(no.value)


@pytest.mark.parametrize(
    "conninfo", ["postgresql://me:top%secret@db/shop", "password=secret oops", "secret"]
)
def test_a_conninfo_that_cannot_be_read_is_not_shown(conninfo: str) -> None:
    sink: PostgresSink[Any] = PostgresSink(conninfo, "orders", schema=SCHEMA)
    with pytest.raises(SinkFailed, match="conninfo cannot be read; allowed is postgresql://") as no:
        sink.open(CONTEXT)
    assert "secret" not in f"{no.value!r} {sink!r} {no.value.__cause__!r}"


def test_a_name_cannot_end_the_block_that_puts_rows_in_one_by_one() -> None:
    wanted = Wanted(pa.schema({"$headrace$": pa.string()}))
    block = Statements(Facts([], [], 1, "", "s", "t", "r", "p", [], []), wanted).merge_each(["42"])
    assert block.startswith("DO $xheadrace$DECLARE")
    assert block.endswith("END$xheadrace$")
