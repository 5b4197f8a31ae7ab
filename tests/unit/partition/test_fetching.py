import random

import pytest

from partition.records import Partition, Position
from tests.support.kafka import FakeClient, fetcher_on

PLACES = [Partition(topic, number) for topic in "ab" for number in range(2)]
A, B = PLACES[:2]


@pytest.mark.parametrize("seed", range(40))
def test_fetches_deliver_all_records_in_order(seed):
    """Promise 11: pauses, removals and new positions skip and repeat nothing."""
    rng = random.Random(seed)
    fetcher = fetcher_on(FakeClient(rng))
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
    client = FakeClient(random.Random(1))
    fetcher = fetcher_on(client)
    fetcher.add({A: Position(0)})
    client.refused_seeks = 2  # when it is added, and with the first fetch
    fetcher.add({B: Position(100, leader_epoch=3)})
    assert {chunk.partition for chunk in fetcher.fetch(20, 0).chunks} == {A}
    assert client.next[B] > 100, "else nothing of it came"
    own = [chunk for chunk in fetcher.fetch(1_000, 0).chunks if chunk.partition == B]
    assert [int(chunk.offsets[0]) for chunk in own] == [100]
    fetcher.close()
