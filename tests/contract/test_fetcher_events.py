"""What librdkafka may hand over, in which order: its events, told by hand."""

import random

import pytest
from confluent_kafka import KafkaError, Message

from partition.errors import CorruptRecord, KafkaFailed, OffsetOutOfRange, TopicMissing
from partition.interfaces import Fetched
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.records import Chunk, Partition, Position
from tests.support.kafka import FakeClient, fetcher_on

A, B, GONE = Partition("t", 0), Partition("t", 1), Partition("t", 2)
CUT = (
    "Partition log truncation detected at offset {} (leader epoch 0): broker end offset is 60 "
    "(offset leader epoch 0). Reset to INVALID.: Local: Partition log truncation detected"
)


class Scripted(FakeClient):
    def hand(self, *messages: Message) -> None:
        self.messages = list(messages)

    def consume(self, num_messages: int, _timeout: float) -> list[Message]:
        taken, self.messages = self.messages[:num_messages], self.messages[num_messages:]
        return taken


@pytest.fixture
def client():
    return Scripted(random.Random(1))


@pytest.fixture
def fetcher(client):
    return fetcher_on(client)


def message(
    place: Partition, offset: int, error: int | None = None, text: str | None = None
) -> Message:
    return Message(
        topic=place.topic,
        partition=place.number,
        offset=offset,
        value=b"v",
        error=None if error is None else KafkaError(error, text),
    )


def add(fetcher: KafkaFetcher, positions: dict[Partition, int]) -> None:
    fetcher.add({partition: Position(offset) for partition, offset in positions.items()})


def chunks(found: list[Chunk]) -> dict[Partition, list[int]]:
    return {chunk.partition: chunk.offsets.tolist() for chunk in found}


def test_runs_of_one_partition_become_one_chunk_and_stale_records_are_dropped(fetcher, client):
    """Storm 32: what was delivered, or lies before the place to read on, is dropped."""
    add(fetcher, {A: 5, B: 0})
    order = [(A, 3), (A, 5), (B, 0), (GONE, 9), (B, 4), (A, 6), (A, 6), (A, 5), (A, 9), (B, 5)]
    client.hand(*(message(place, offset) for place, offset in order))
    assert chunks(fetcher.fetch(100, 0).chunks) == {A: [5, 6, 9], B: [0, 4, 5]}
    client.hand(message(A, 9), message(A, 10))
    assert chunks(fetcher.fetch(100, 0).chunks) == {A: [10]}


def test_what_stops_a_partition_is_told_behind_its_good_records(fetcher, client):
    """Faults K10: librdkafka reads on behind a corrupt batch, so it is taken off at once."""
    add(fetcher, {A: 0, B: 7})
    client.hand(
        message(B, 7),
        message(A, 0),
        message(B, 8, KafkaError._BAD_MSG, "failed CRC32C check"),
        message(B, 900),
        message(B, 901, KafkaError._PARTITION_EOF),
        message(B, 10**18, KafkaError._AUTO_OFFSET_RESET),
        message(A, 1),
        message(A, 2, KafkaError._PARTITION_EOF),
    )
    fetched = fetcher.fetch(100, 0)
    assert chunks(fetched.chunks) == {B: [7], A: [0, 1]}
    assert fetched.ends == {A: 2}
    told = fetched.failures[B]
    assert isinstance(told, CorruptRecord)
    assert str(told).startswith("t[1] has a corrupt record at or after offset 8: failed CRC32C")
    assert client.next.keys() == {A}
    client.hand(message(B, 902), message(B, 902, KafkaError._BAD_MSG))
    assert fetcher.fetch(100, 0) == Fetched()


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._BAD_MSG,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._BAD_COMPRESSION,
        KafkaError._UNDERFLOW,
        KafkaError.MSG_SIZE_TOO_LARGE,
    ],
)
def test_whatever_librdkafka_would_skip_stops_the_partition(fetcher, client, code):
    """Storm 24: a record that cannot be read, for its size or its form, is never passed over."""
    add(fetcher, {A: 3})
    client.hand(message(A, 3, code))
    assert isinstance(fetcher.fetch(100, 0).failures[A], CorruptRecord)


def test_an_error_of_another_place_is_not_believed(fetcher, client):
    """Faults K14: out of range comes without a version, so it may be of a former assignment."""
    add(fetcher, {A: 50})
    fetcher.remove([A])
    add(fetcher, {A: 10})
    client.hand(message(A, 50, KafkaError._AUTO_OFFSET_RESET), message(A, 10))
    fetched = fetcher.fetch(100, 0)
    assert fetched.failures == {}
    assert client.next == {A: 10}, "seated anew, to hear of its own place"
    client.hand(message(A, 10), message(A, 11, KafkaError._AUTO_OFFSET_RESET))
    fetched = fetcher.fetch(100, 0)
    assert chunks(fetched.chunks) == {A: [10]}
    told = fetched.failures[A]
    assert isinstance(told, OffsetOutOfRange)
    assert (told.offset, told.diverged_at) == (11, None)


def test_a_truncation_is_read_from_its_text(fetcher, client):
    """Faults K04: the event has no offset; the text has ours and the one where logs differ."""
    add(fetcher, {A: 100, B: 100})
    client.hand(
        message(A, -1001, KafkaError._AUTO_OFFSET_RESET, CUT.format(100)),
        message(B, -1001, KafkaError._AUTO_OFFSET_RESET, CUT.format(90)),
    )
    failures = fetcher.fetch(100, 0).failures
    assert failures.keys() == {A}
    told = failures[A]
    assert isinstance(told, OffsetOutOfRange)
    assert (told.offset, told.diverged_at) == (100, 60)


def test_an_error_that_keeps_coming_is_believed_in_the_end(fetcher, client):
    """Storm 18: no endless loop of one request after the other."""
    add(fetcher, {A: 100})
    for _ in range(10):
        client.hand(message(A, 7, KafkaError._AUTO_OFFSET_RESET))
        failures = fetcher.fetch(100, 0).failures
        if failures:
            break
    assert failures.keys() == {A}


def test_partitions_told_to_be_missing_are_stopped_and_no_others(fetcher, client):
    other = Partition("u", 0)
    add(fetcher, {A: 0, B: 0, other: 0})
    for text in ("t [1]: topic does not exist", "u: unknown", "t [7]: topic does not exist"):
        fetcher._on_error(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, text))
    client.hand(message(A, 0), message(other, 0))
    fetched = fetcher.fetch(100, 0)
    assert chunks(fetched.chunks) == {A: [0], other: [0]}
    assert {each: type(error) for each, error in fetched.failures.items()} == {B: TopicMissing}


def test_a_refusal_is_raised_after_what_was_received(fetcher, client):
    add(fetcher, {A: 0, B: 0})
    client.hand(message(A, 0), message(B, -1, KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert chunks(fetcher.fetch(100, 0).chunks) == {A: [0]}
    with pytest.raises(KafkaFailed, match=r"to read t\[1\].*AUTHORIZATION"):
        fetcher.fetch(100, 0)


def test_rights_on_the_group_are_not_needed(fetcher, client):
    """Faults K15: librdkafka asks who coordinates it, also where nothing is committed to it."""
    add(fetcher, {A: 0})
    fetcher._on_error(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "FindCoordinator"))
    client.hand(message(A, 0))
    assert chunks(fetcher.fetch(100, 0).chunks) == {A: [0]}
    assert fetcher.fetch(100, 0) == Fetched()


def test_end_is_not_believed_before_the_epoch_is_checked(fetcher, client):
    """Faults K04."""
    client.refused_seeks, eof = 2, KafkaError._PARTITION_EOF
    fetcher.add({A: Position(5, 0), B: Position(0)})
    client.hand(message(A, 5), message(B, 0), message(A, 6, eof))
    found = fetcher.fetch(100, 0)
    assert (chunks(found.chunks), found.ends) == ({B: [0]}, {})
    client.hand(message(A, 5), message(A, 6, eof))
    found = fetcher.fetch(100, 0)
    assert (chunks(found.chunks), found.ends) == ({A: [5]}, {A: 6})
