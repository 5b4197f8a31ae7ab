import psycopg
import pyarrow as pa
import pytest

from headrace import InvalidTopology
from headrace.sinks import PostgresSink
from sinks.postgres.database import verdict
from sinks.storage import Storage
from topology.errors import SinkFailed
from topology.sink import SinkContext

SCHEMA = pa.schema([("id", pa.int64())])
STATES = {
    # a trigger may raise any state, such as SH013
    "refused": "23505 22001 54000 P0001 44000 SH013 45000 38001",
    "temporary": "99999 58030 XX000 57P01 08006 53100 25006",
    "changed": "22P04 42703 42501 3F000",
    "busy": "55P03 57014 40P01",
}


class Raised(psycopg.Error):
    def __init__(self, state):
        super().__init__()
        self.sqlstate = state


@pytest.mark.parametrize("means", STATES)
def test_error_is_classified_by_its_state(means):
    for state in STATES[means].split():
        assert verdict(Raised(state)) == means, state


def test_error_of_the_client_is_temporary_unless_a_value_is_unreadable():
    assert verdict(psycopg.OperationalError("the connection is lost")) == "temporary"
    assert verdict(psycopg.DataError("timestamp too large")) == "changed"


def test_jdbc_url_is_rejected_without_its_secret():
    with pytest.raises(InvalidTopology, match="PostgresSink: found a JDBC URL, expected") as no:
        PostgresSink("jdbc:postgresql://root:secret@db/shop", "orders", schema=SCHEMA)
    assert "secret" not in str(no.value)


@pytest.mark.parametrize(
    "conninfo", ["postgresql://me:top%secret@db/shop", "password=secret oops", "secret"]
)
def test_invalid_conninfo_is_rejected_without_its_secret(conninfo):
    sink = PostgresSink(conninfo, "orders", schema=SCHEMA)
    with pytest.raises(SinkFailed, match="conninfo cannot be read, expected postgresql://") as no:
        sink.open(SinkContext("pipeline", "sink", {}, Storage(""), None))
    assert "secret" not in f"{no.value!r} {sink!r} {no.value.__cause__!r}"
