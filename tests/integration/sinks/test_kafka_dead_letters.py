import hashlib
import threading
import uuid
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from partition.records import Partition
from service.devservers.servers import EmbeddedKafka
from sinks import KafkaDeadLetters
from sinks.storage import Storage
from tests.support.committed_messages import committed_messages
from tests.support.messages import message
from tests.support.patience import Limit
from topology.errors import SinkFailed
from topology.record import Record
from topology.sink import DeadLetter, RangeNotice, SinkContext

pytestmark = pytest.mark.integration


def letter(value: bytes | None = b"{broken", *, offset: int = 42, **more: Any) -> DeadLetter:
    headers = [("trace", b"\x00\xff"), ("trace", None)]
    given = {"key": b"AA", "timestamp": (1, 1_700_000_000_123), "headers": headers}
    record = Record(value, message(Partition("flights", 3), offset, value, **given))
    made = DeadLetter(record, "not JSON", 3, "ValueError", "parse", 1_700_000_009_999)
    return replace(made, **more)


def context(address: str) -> SinkContext:
    return SinkContext("pipeline", "dead", {"bootstrap.servers": address}, Storage(""), None)


def told(sink: KafkaDeadLetters, count: int, seconds: float = 30.0) -> dict[int, str | None]:
    found: dict[int, str | None] = {}
    ends = Limit(seconds)
    while len(found) < count and not ends.passed:
        sink.flush(0.2)
        found |= {delivered.token: delivered.error for delivered in sink.poll()}
    return found


@pytest.fixture
def name():
    return f"dead-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def opened(kafka):
    sinks: list[KafkaDeadLetters] = []

    def make(topic: str, **properties: Any) -> KafkaDeadLetters:
        sinks.append(KafkaDeadLetters(topic, properties=properties))
        sinks[-1].open(context(kafka.address))
        return sinks[-1]

    yield make
    for sink in sinks:
        sink.close()
        sink.close()


def test_a_letter_has_the_original_bytes_and_says_what_happened(kafka, opened, name):
    """Promise 3, Storm 16: a dead letter counts once the broker has acknowledged it."""
    sink = opened(name)
    sink.send(letter(), 7)
    sink.send(letter(None, reason="é\ud800" + "x" * 5000), 8)
    assert sink.pending == 2
    assert told(sink, 2) == {7: None, 8: None}
    assert sink.pending == 0
    assert sink.poll() == []
    first, second = committed_messages(kafka.address, name)
    assert (first.key(), first.value(), second.value()) == (b"AA", b"{broken", None)
    assert first.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME  # the broker's clock, not ours
    assert first.headers() == [
        ("trace", b"\x00\xff"),
        ("trace", None),
        ("headrace.topic", b"flights"),
        ("headrace.partition", b"3"),
        ("headrace.offset", b"42"),
        ("headrace.timestamp_ms", b"1700000000123"),
        ("headrace.reason", b"not JSON"),
        ("headrace.step", b"parse"),
        ("headrace.attempts", b"3"),
        ("headrace.error_class", b"ValueError"),
        ("headrace.failed_at_ms", b"1700000009999"),
        ("headrace.pipeline", b"pipeline"),
    ]
    reason = dict(second.headers() or [])["headrace.reason"]
    assert len(reason) == 2048
    assert reason.decode().startswith("é\\ud800xxx")


@pytest.mark.parametrize("judge", ["broker", "client", "asked for"])
def test_a_letter_too_large_for_the_topic_is_sent_as_a_reference(kafka, opened, name, judge):
    sink = opened(name, **{"message.max.bytes": 1_000_000} if judge == "client" else {})
    large = b"x" * (1_000 if judge == "asked for" else 2_000_000)
    sink.send(letter(b"small"), 1)
    sink.send(letter(large, by_reference=judge == "asked for"), 2)
    sink.send(letter(b"small too"), 3)
    assert told(sink, 3) == {1: None, 2: None, 3: None}
    messages = {each.value(): each for each in committed_messages(kafka.address, name)}
    assert messages.keys() == {b"small", b"small too", None}
    headers = dict(messages[None].headers() or [])
    assert messages[None].key() == b"AA"
    assert headers["headrace.value_size"] == str(len(large)).encode()
    assert headers["headrace.value_sha256"] == hashlib.sha256(large).hexdigest().encode()
    assert headers["headrace.offset"] == b"42"


def test_a_client_without_room_keeps_the_letters_until_it_has(kafka, opened, name):
    sink = opened(name, **{"queue.buffering.max.messages": 10})
    for token in range(100):
        sink.send(letter(offset=token), token)
    assert sink.pending == 100
    assert told(sink, 100) == dict.fromkeys(range(100))
    assert len(committed_messages(kafka.address, name)) == 100


def test_letters_wait_while_the_broker_is_away(tmp_path, name):
    """Promise 15: with Kafka away it waits."""
    broker = EmbeddedKafka(tmp_path)
    broker.open()
    sink = KafkaDeadLetters(name)
    try:
        sink.open(context(broker.address))
        sink.send(letter(), 1)
        assert told(sink, 1) == {1: None}
        broker.close()
        sink.send(letter(), 2)
        sink.flush(1.5)
        assert sink.poll() == []
        assert sink.pending == 1
        broker.open()
        assert told(sink, 1, 60) == {2: None}
    finally:
        sink.close()
        broker.close()


def test_open_fails_if_the_broker_is_silent(monkeypatch):
    monkeypatch.setattr("sinks.kafka.client._ASK_SECONDS", (0.5,))
    with pytest.raises(SinkFailed, match="'nowhere'"):
        KafkaDeadLetters("nowhere").open(context("127.0.0.1:9"))


def test_opening_twice_at_once_creates_the_topic_once(kafka, opened, name):
    threads = [threading.Thread(target=opened, args=(name,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink = opened(name)
    sink.send(letter(), 1)
    assert told(sink, 1) == {1: None}


def test_a_notice_says_which_range_was_skipped(kafka, opened, name):
    """Promise 12: what the source lost is told where the dead letters go."""
    sink = opened(name)
    notice = RangeNotice("flights", 3, 40, 90, 50, "expired", "and the log holds 90 to 120", 7)
    sink.send(notice, 5)
    assert told(sink, 1) == {5: None}
    (sent,) = committed_messages(kafka.address, name)
    assert (sent.key(), sent.value()) == (None, None)
    headers = {key: (value or b"").decode() for key, value in sent.headers() or []}
    assert headers == {
        "headrace.notice": "range",
        "headrace.topic": "flights",
        "headrace.partition": "3",
        "headrace.first_offset": "40",
        "headrace.resume_offset": "90",
        "headrace.lost": "50",
        "headrace.reason": "expired",
        "headrace.found": "and the log holds 90 to 120",
        "headrace.noticed_at_ms": "7",
        "headrace.pipeline": "pipeline",
    }
