"""Headers of any bytes, through the real client from a broker of its own making."""

import pickle
import random
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from opentelemetry.trace import INVALID_SPAN

from partition.records import Chunk, Partition
from service.dead_letters.stored import collect_marks, content_of, read_message
from service.observability.tracing import Traces
from sinks.kafka.dead_letter_sink import _content, _Form
from sinks.spark.frames import fit_records
from tests.support.raw_headers import RawRecord, send_raw
from topology.record import HeadersUnreadable, Record
from topology.sink import DeadLetter

SECONDS = 30.0
BAD = RawRecord(b"bad", ((b"a", b"1"), (b"\xffname", b"2"), (b"z", None)), b"key")
GOOD = RawRecord(b"good", ((b"a", b"1"), (b"a", None), (b"", b"")))
HOT = 50  # calls after which the interpreter has specialised one

# Plays what a bolt did: the call is specialised by then, and the names are looked at.
CRASH = """
import sys
from tests.unit.hostile.test_header_names import BAD, GOOD, HOT, Broker
with Broker() as broker:
    def names(message):
        return sum(len(name) for name, _ in message.headers())
    for message in broker.through([*[GOOD] * HOT, BAD]):
        names(message)
"""


class Broker:
    def __init__(self):
        self._end = 0
        mock = {"bootstrap.servers": "none:1", "test.mock.num.brokers": 1}
        self._consumer = Consumer({**mock, "group.id": "g", "fetch.wait.max.ms": 10})
        (broker,) = self._consumer.list_topics(timeout=SECONDS).brokers.values()
        self._address = f"{broker.host}:{broker.port}"

    def through(self, records):
        send_raw(self._address, "t", records)
        self._consumer.assign([TopicPartition("t", 0, self._end)])
        self._end += len(records)
        found = self._consumer.consume(len(records), SECONDS)
        assert len(found) == len(records)
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_raised):
        self._consumer.close()


@pytest.fixture(scope="module")
def broker():
    with Broker() as made:
        yield made


def record_of(message: Message) -> Record:
    return Record(message.value(), message)


def letter_of(record):
    return DeadLetter(record, "no", 1, "ValueError", "parse", 7)


def drawn(rng):
    names = [
        b"", b"a", "é".encode(), b"\xff", b"\xc3", b"a\x00\xff", b"\xed\xa0\x80", b"headrace.topic",
        b"headrace.mark", b"traceparent", rng.randbytes(rng.randrange(9)), b"n" * 5_000,
    ]  # fmt: skip
    values = [None, b"", b"1", rng.randbytes(30), b"v" * 20_000]
    count = rng.choice([0, 1, 1, 2, 3, 3, 1_000])
    sane = rng.random() < 0.4
    names = [each for each in names if not sane or is_text(each)]
    if count > 3:
        names, values = names[:-1], values[:-1]
    headers = tuple((rng.choice(names), rng.choice(values)) for _ in range(count))
    return RawRecord(rng.choice([b"v", b"", None]), headers, rng.choice([None, b"", b"k"]))


def is_text(name):
    """Whether the client can give a name, which to it ends with the first null byte."""
    try:
        name.split(b"\0")[0].decode()
    except UnicodeDecodeError:
        return False
    return True


def test_headers_of_any_bytes_are_given_or_refused_by_name(broker):
    rng = random.Random(27)
    refused = 0
    sent: list[RawRecord] = []
    read: list[Message] = []
    for _ in range(4):  # the broker keeps a few megabytes of a topic
        some = [drawn(rng) for _ in range(100)]
        sent += some
        read += broker.through(some)
    for raw, message in zip(sent, read, strict=True):
        record = record_of(message)
        for each in (record, record, pickle.loads(pickle.dumps(record))):  # noqa: S301 - ours
            if all(is_text(name) for name, _value in raw.headers):
                cut = tuple((name.split(b"\0")[0].decode(), value) for name, value in raw.headers)
                assert each.headers == cut
            else:
                refused += 1
                with pytest.raises(HeadersUnreadable, match="expected UTF-8"):
                    _ = each.headers
        read_message(message)
        content_of(message)
        collect_marks([message])
        for form in _Form:
            assert _content(letter_of(record), "p", form)["headers"]
    assert refused > 100


def test_a_specialised_call_is_refused_as_the_first_one_was(broker):
    def names(record):
        return sum(len(name) for name, _value in record.headers)

    *good, bad = map(record_of, broker.through([*[GOOD] * HOT, BAD]))
    for each in good:
        assert names(each) == 2
    for _ in range(3):
        with pytest.raises(HeadersUnreadable, match=r"found the name b'\\xffname'"):
            names(bad)


def test_a_letter_without_readable_headers_says_why(broker):
    (message,) = broker.through([BAD])
    content = _content(letter_of(record_of(message)), "p", _Form.WHOLE)
    assert (content["value"], content["key"]) == (b"bad", b"key")
    (name, _value), *_ = content["headers"]
    assert name == "headrace.topic", "the record's own are left out"
    assert b"\\xffname" in dict(content["headers"])["headrace.headers_error"]


def test_a_trace_begins_with_a_record_whose_headers_cannot_be_read(broker):
    messages: list[Any] = broker.through([GOOD, BAD])
    spans: list[str] = []

    tracer = SimpleNamespace(start_span=lambda name, *_more: spans.append(name) or INVALID_SPAN)
    traces = Traces(tracer, 1.0, np.random.default_rng(1))
    traces.chunk_emitted(Chunk(Partition("t", 0), np.arange(2), messages), np.arange(2))
    assert len(spans) == 2


def test_a_spark_step_is_given_all_but_those_with_unreadable_headers(broker):
    records = [*map(record_of, broker.through([GOOD, BAD, GOOD, BAD, GOOD]))]
    fitted = fit_records([records[:2], ["no record"], records[2:]])
    assert fitted.table["value"].to_pylist() == [b"good"] * 3
    assert sorted(fitted.rejected) == [1, 2, 4]
    assert "UTF-8" in fitted.rejected[1]
    assert "UTF-8" in fitted.rejected[4]


def test_the_client_still_crashes_when_it_is_asked_without_our_guard():
    """A client that does not fails here; then `headers_of` may become simple."""
    ended = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGSEGV, ended.stderr.decode()
