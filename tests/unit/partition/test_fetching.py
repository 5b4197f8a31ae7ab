"""The fetcher on a client of our own: any calls in any order."""

import random

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.records import Partition, Position

PLACES = [Partition(topic, number) for topic in "ab" for number in range(2)]
A, B = PLACES[:2]


class Client:
    """Delivers each partition's offsets in order, as librdkafka does, from where it is seated."""

    def __init__(self, rng):
        self._rng = rng
        self.next = {}
        self.paused = set()
        self.refused_seeks = 0

    def incremental_assign(self, seats):
        self.next |= {(seat.topic, seat.partition): seat.offset for seat in seats}

    def incremental_unassign(self, seats):
        for seat in seats:
            del self.next[seat.topic, seat.partition]

    def pause(self, seats):
        self.paused |= {(seat.topic, seat.partition) for seat in seats}

    def resume(self, seats):
        self.paused -= {(seat.topic, seat.partition) for seat in seats}

    def seek(self, seat):
        if self.refused_seeks:
            self.refused_seeks -= 1
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.next[seat.topic, seat.partition] = seat.offset

    def list_topics(self, *_asked, **_limits):
        return None

    def close(self):
        return None

    def consume(self, num_messages, timeout):
        messages = []
        places = [place for place in self.next if place not in self.paused]
        while places and len(messages) < num_messages and self._rng.random() < 0.97:
            place = self._rng.choice(places)
            for _ in range(min(num_messages - len(messages), self._rng.randint(1, 5))):
                topic, number = place
                offset = self.next[place]
                messages.append(Message(topic=topic, partition=number, offset=offset, value=b"x"))
                self.next[place] += 1
        return messages


def fetcher_on(client):
    fetcher = KafkaFetcher({})
    fetcher._client = client
    return fetcher


@pytest.mark.parametrize("seed", range(40))
def test_fetches_deliver_all_records_in_order(seed):
    """Promise 11: pauses, removals and new positions skip and repeat nothing."""
    rng = random.Random(seed)
    fetcher = fetcher_on(Client(rng))
    expected = {}
    paused = set()
    for _ in range(400):
        what, place = rng.random(), rng.choice(PLACES)
        if what < 0.1:
            expected[place] = rng.randint(0, 1_000)
            paused.discard(place)
            fetcher.add({place: Position(expected[place])})
        elif what < 0.15:
            fetcher.remove([place])
            expected.pop(place, None)
            paused.discard(place)
        elif what < 0.3:
            fetcher.pause(place)
            paused |= {place} & expected.keys()
        elif what < 0.45:
            fetcher.resume(place)
            paused.discard(place)
        else:
            for chunk in fetcher.fetch(20, 0).chunks:
                first = expected[chunk.partition]
                assert chunk.offsets.tolist() == list(range(first, first + len(chunk)))
                assert chunk.partition not in paused
                expected[chunk.partition] += len(chunk)
    came = {chunk.partition for _ in range(100) for chunk in fetcher.fetch(20, 0).chunks}
    assert came == expected.keys() - paused
    fetcher.close()


def test_records_before_the_epoch_check_are_fetched_again():
    """Promise 12: a log that was cut off is noticed, though the seek was refused at first."""
    client = Client(random.Random(1))
    fetcher = fetcher_on(client)
    fetcher.add({A: Position(0)})
    client.refused_seeks = 2  # when it is added, and with the first fetch
    fetcher.add({B: Position(100, leader_epoch=3)})
    assert {chunk.partition for chunk in fetcher.fetch(20, 0).chunks} == {A}
    assert client.next[B] > 100, "else nothing of it came"
    own = [chunk for chunk in fetcher.fetch(1_000, 0).chunks if chunk.partition == B]
    assert [int(chunk.offsets[0]) for chunk in own] == [100]
    fetcher.close()
