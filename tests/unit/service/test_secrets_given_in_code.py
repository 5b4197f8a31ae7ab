from contextlib import suppress
from unittest.mock import Mock

import pyarrow as pa
import pytest

from headrace import reference
from headrace.payloads import Registry
from headrace.sinks import KafkaDeadLetters, KafkaTopicSink, PostgresSink
from headrace.state import PostgresState, State, count
from sinks.references import read_reference
from sinks.storage import Storage
from topology.errors import ReferenceLoadFailed, SinkFailed
from topology.masking import mask
from topology.sink import SinkContext

CANARY = "canary-4711"
ROW = pa.schema([("id", pa.int64())])
URL = "postgresql://db:5432/shop"
SASL = {"sasl.username": "somebody", "sasl.password": CANARY}
CONTEXT = SinkContext("p", "s", {"bootstrap.servers": "none:1"}, Storage(""), object())


class Reached(Exception):
    """The world would be touched now."""


TOUCH = Mock(side_effect=Reached)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr("sinks.postgres.database._connect", TOUCH)
    monkeypatch.setattr("sinks.kafka.client.Cluster", TOUCH)
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", TOUCH)
    mask.learn(())
    yield
    mask.learn(())


def opened(sink):
    return lambda: sink.open(CONTEXT)


SECRET_KEY = {"fs.s3a.secret.key": CANARY}
PRICES = reference("s3a://prices.parquet", key="id", properties=SECRET_KEY)
TOTALS = State("totals", key={"id": int}, into=PostgresState(URL, "totals", password=CANARY))
TOTALS.holds(n=count())
USES = {
    "dead letters": opened(KafkaDeadLetters("t", properties=SASL)),
    "a topic": opened(KafkaTopicSink("t", value=str, properties=SASL)),
    "a database": opened(PostgresSink(URL, "orders", schema=ROW, password=CANARY)),
    "a database's URL": opened(PostgresSink(f"{URL}?password={CANARY}", "orders", schema=ROW)),
    "a state": lambda: TOTALS.fetch(CONTEXT),
    "a reference": lambda: read_reference(PRICES, Storage(""), Mock(run=TOUCH)),
    "a registry": Registry("http://r", {"basic.auth.user.info": f"me:{CANARY}"}).connect,
    "a registry's token": Registry("http://r", {"bearer.auth.token": CANARY}).connect,
    "a registry's URL": Registry(f"http://me:{CANARY}@r").connect,
}


@pytest.mark.parametrize("use", USES)
def test_secret_given_in_code_is_hidden_before_its_use(use):
    refusals = SinkFailed, ReferenceLoadFailed, ValueError, TypeError  # of half a configuration
    with suppress(Reached, *refusals):
        USES[use]()
    assert mask(f"login with {CANARY} was refused") == "login with *** was refused"


def test_configured_secrets_replace_earlier_ones():
    mask.add(["canary-of-code"])
    mask.learn(["canary-of-the-file"])
    mask.add(["canary-of-a-sink"])
    assert mask("canary-of-code canary-of-the-file canary-of-a-sink") == "canary-of-code *** ***"
