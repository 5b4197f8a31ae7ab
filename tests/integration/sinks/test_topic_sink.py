import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from service.devservers.servers import EmbeddedKafka
from sinks import KafkaTopicSink
from sinks.kafka import client
from sinks.storage import Storage
from tests.support.batches import LINE, group_of
from tests.support.committed_messages import committed_messages, committed_values
from tests.support.patience import seconds
from topology.errors import RowsRejected, SinkFailed
from topology.sink import Batch, Committed, Fence, SinkContext

pytestmark = pytest.mark.integration


def context(kafka: EmbeddedKafka, *, exactly_once: bool = False) -> SinkContext:
    properties = {"bootstrap.servers": kafka.address, "linger.ms": 0}
    return SinkContext("pipeline", "sink", properties, Storage(""), None, exactly_once=exactly_once)


def as_is(row: str) -> str:
    return row


@pytest.fixture
def opened(kafka):
    sinks: list[KafkaTopicSink[Any]] = []

    def open_sink(sink: KafkaTopicSink[Any], *, exactly_once: bool = True) -> KafkaTopicSink[Any]:
        sinks.append(sink)
        sink.open(context(kafka, exactly_once=exactly_once))
        return sink

    yield open_sink
    for sink in sinks:
        sink.close()


def test_rows_are_sent_with_key_and_headers_and_the_others_named(kafka, topic, opened):
    name = topic(2, {"max.message.bytes": "2000"})

    def headers(row: dict[str, Any]) -> list[tuple[str, bytes]]:
        return [("n", b"%d" % row["n"])]

    sink = opened(
        KafkaTopicSink(name, key=lambda row: row["k"], headers=headers), exactly_once=False
    )
    rows = [{"n": 1, "k": "a"}, {"k": "b"}, {"n": 3, "k": "c" * 2_000}, {"n": 4, "k": None}]
    with pytest.raises(RowsRejected) as caught:
        sink.write(Batch(1, [rows], 4))
    assert caught.value.reasons == {
        1: "KeyError: 'n'",
        2: f"a message of 4160 bytes; topic '{name}' allows 2000",
    }
    found = committed_messages(context(kafka), name)
    assert sorted((each.value(), each.key(), each.headers()) for each in found) == [
        (b'{"n":1,"k":"a"}', b"a", [("n", b"1")]),
        (b'{"n":4,"k":null}', None, [("n", b"4")]),
    ]
    # The largest message that is let through is one that the broker takes, too.
    sink.write(Batch(2, [[{"n": 5, "k": "d" * 910}]], 1))
    assert len(committed_values(context(kafka), name)) == 3


def test_many_messages_are_sent_in_one_batch(kafka, topic, opened):
    name = topic(1)
    properties = {"queue.buffering.max.messages": 100}  # there is never room for all
    sink = opened(KafkaTopicSink(name, value=as_is, properties=properties))
    sink.write(Batch(1, [[str(n) for n in range(2_000)]], 2_000))
    sink.commit(sink.stage(group_of(1, [str(n) for n in range(2_000, 5_000)])))
    found = committed_values(context(kafka), name)
    assert found == [b"%d" % n for n in range(5_000)]


def test_a_topic_that_is_not_there_is_named(kafka):
    with pytest.raises(SinkFailed, match="topic 'nowhere' does not exist; create it first"):
        KafkaTopicSink("nowhere").open(context(kafka))


def test_a_topic_that_would_lose_claims_is_refused(kafka, topic):
    name, other = topic(1), topic(1)
    sink: KafkaTopicSink[Any] = KafkaTopicSink(name, transactions_topic=other)
    with pytest.raises(SinkFailed, match=f"topic '{other}' has 1 partitions and .*=delete"):
        sink.open(context(kafka, exactly_once=True))


def test_transactions_topic_is_created_only_for_exactly_once(kafka, topic, opened):
    name = topic(1)
    sink = opened(KafkaTopicSink(name), exactly_once=False)
    assert f"{name}.transactions" not in kafka.topics()
    with pytest.raises(SinkFailed, match="not open for transactions"):
        sink.fence([Fence(LINE, 1)])
    for _ in range(2):
        opened(KafkaTopicSink(name))
    assert f"{name}.transactions" in kafka.topics()


def test_successor_aborts_a_frozen_producers_transaction(kafka, topic, opened, monkeypatch):
    """Promise 9."""
    name = topic(1)
    frozen = opened(KafkaTopicSink(name, value=as_is))
    frozen.fence([Fence(LINE, 1)])
    began: list[Producer] = []  # kept, as a process that is frozen keeps it

    def freeze(commit: Any) -> None:
        commit.__self__.flush(seconds(30))
        began.append(commit.__self__)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(client, "commit_with_retries", freeze)
        patched.setattr(client.TransactionalProducer, "_abort", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            frozen.commit(frozen.stage(group_of(1, ["zombie"])))
    start = time.monotonic()
    successor = opened(KafkaTopicSink(name, value=as_is))
    assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 0)]
    assert time.monotonic() - start < 50  # seconds: a transaction nobody ends stays open for 60
    with pytest.raises(KafkaException):
        began[0].commit_transaction(30)
    successor.commit(successor.stage(group_of(1, ["heir"], epoch=2)))
    assert committed_values(context(kafka), name) == [b"heir"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_commit_whose_answer_is_lost_is_decided_at_once(
    kafka, topic, opened, monkeypatch, is_there
):
    """Storm 45: idempotent by txid."""
    name = topic(1)
    sink = opened(KafkaTopicSink(name, value=as_is))
    sink.fence([Fence(LINE, 1)])
    lost: list[object] = []
    patiently = client.commit_with_retries

    def lose(commit: Any) -> None:
        if lost:
            patiently(commit)
            return
        if is_there:
            commit(30)
        lost.append(commit)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(client, "commit_with_retries", lose)
    sink.commit(sink.stage(group_of(1, ["row"])))
    assert lost
    assert committed_values(context(kafka), name) == [b"row"]
    assert sink.committed([LINE]) == [Committed(LINE, 1, 1)]
