import random

import pytest
import structlog
from confluent_kafka import KafkaError

from partition.kafka import librdkafka
from partition.kafka.librdkafka import Availability, KafkaLog, OpenTransactions
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


NODE = "127.0.0.1:9092"


def told(seconds, *, owes, idle=0.0):
    """Statistics of a moment: whether the broker owes an answer, and since when it was silent."""
    broker = {"state": "UP", "source": "learned", "nodename": NODE}
    broker |= {"waitresp_cnt": int(owes), "rxidle": int(idle * 1e6)}
    return {"ts": int(seconds * 1e6), "brokers": {f"{NODE}/1": broker}}


def begun():
    found = Availability()
    found.begin(0.5)
    found.take(told(100, owes=False))
    assert found
    return found


def test_a_broker_that_owes_an_answer_for_too_long_is_away():
    """Faults K02."""
    found = begun()
    found.take(told(102, owes=True, idle=1.0))
    found.take(told(104, owes=True, idle=3.0))
    assert found
    found.take(told(107.5, owes=True, idle=6.5))
    assert not found
    found.take(told(109, owes=False, idle=0.1))
    assert found


def test_prefetched_records_end_no_outage_and_who_owes_nothing_is_not_silent():
    found = begun()
    found.lose()
    found.note_records()
    assert not found
    found.take(told(200, owes=False, idle=90.0))  # all partitions are paused
    assert found


@pytest.mark.parametrize(
    "later",
    [[(112, 11.0), (116, 15.0)], [(120, 1.0), (126, 7.0)]],
    ids=["while it lasts", "once it is over"],
)
def test_throttled_broker_gets_more_patience(later):
    """Faults K16: a quota that is used up is no outage; a frozen broker still is one."""
    found = begun()
    found.throttled(NODE, 8.0)
    found.throttled(NODE, 0.0)  # many questions are under way, and answered at one moment
    found.take(told(102, owes=True, idle=1.0))
    for (seconds, idle), is_available in zip(later, [True, False], strict=True):
        found.take(told(seconds, owes=True, idle=idle))
        assert bool(found) is is_available


def logs_told(seconds, *logs):
    """Statistics of a moment: of each log its last stable offset and its end."""
    offsets = [{"ls_offset": stable, "hi_offset": end} for stable, end in logs]
    partitions = {str(number): each for number, each in enumerate(offsets)}
    return {"ts": int(seconds * 1e6), "topics": {"a": {"partitions": partitions}}}


def test_wait_counts_from_the_first_blocked_statistics():
    """Faults K13."""
    found = OpenTransactions()
    assert found.seconds(A, 3) == 0
    found.take(logs_told(100, (3, 3), (5, 9)))
    found.take(logs_told(102, (3, 6), (5, 9)))
    found.take(logs_told(104, (3, 8), (5, 12)))
    assert (found.seconds(A, 3), found.seconds(B, 5)) == (2, 4)
    assert found.seconds(A, 2) == 0, "what lies before it is still to come"


def test_each_transaction_that_ends_begins_the_wait_anew():
    found = OpenTransactions()
    found.take(logs_told(100, (3, 6)))
    found.take(logs_told(110, (5, 9)))
    assert found.seconds(A, 5) == 0
    found.take(logs_told(112, (5, 9)))
    assert found.seconds(A, 5) == 2
    found.take(logs_told(114, (9, 9)))
    assert found.seconds(A, 9) == 0
    found.take(logs_told(116, (9, 12)))
    assert found.seconds(A, 9) == 0


def test_what_is_not_known_holds_nobody_up():
    found = OpenTransactions()
    found.take(logs_told(100, (-1001, 9)))
    found.take({"topics": {"a": {"partitions": {"-1": {"ls_offset": -1001, "hi_offset": -1}}}}})
    found.take({})
    assert found.seconds(A, -1001) == 0
    found.take(logs_told(100, (3, 6)))
    found.clear()
    assert found.seconds(A, 3) == 0


def test_clients_that_lost_the_same_broker_log_it_once(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(librdkafka.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(KafkaLog, "_next", {})
    monkeypatch.setattr(KafkaLog, "_held", {})
    lost = KafkaError(KafkaError._TRANSPORT, "a:1: Connection refused")
    with structlog.testing.capture_logs() as logged:
        for client in (KafkaLog(), KafkaLog()):
            client.log(3, "%s", "FAIL", "c", "[thrd:a:1]: a:1: Disconnected")
            assert client.last == "a:1: Disconnected", "for whoever gives up before an event comes"
            client.error(lost)
            client.error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
            assert client.last == "a:1: Connection refused"
        now[0] += 30.0
        client.error(lost)
    assert [(each["event"], each["held_back"]) for each in logged] == [
        ("kafka_trouble", n) for n in (0, 1)
    ]
