"""One suite for every Catalogue: the one in memory and the one of Kafka."""

import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import pytest
from confluent_kafka import KafkaError

from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy
from partition.errors import KafkaFailed, KafkaUnavailable, TopicMissing
from partition.interfaces import Log, LogEnd, Topic
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.manager import InFlightLimits, PartitionStatistics
from partition.records import Partition
from partition.recovery import Ways
from tests.acceptance import processes
from tests.support.faulty_store import FaultyStore
from tests.support.kafka import SECONDS, KafkaWorld, numbers
from tests.support.patience import Limit, slack


def test_a_topic_is_described_with_its_partitions_in_order(world):
    """Storm 11: a partition is known by its number, whatever leader it has or lacks."""
    topic = world.topic(12)
    found = world.catalogue().topic(topic).result(SECONDS)
    assert (found.name, found.partitions) == (topic, tuple(range(12)))
    assert found.topic_id


def test_all_topics_are_listed_without_kafkas_own(world):
    one, two = world.topic(1), world.topic(3)
    if isinstance(world, KafkaWorld):
        world.transaction(Partition(one, 0), numbers(1), commit=True)  # makes Kafka's own topic
    catalogue = world.catalogue()
    topics = catalogue.topics().result(SECONDS)
    assert topics[one] == catalogue.topic(one).result(SECONDS)
    assert topics[two].partitions == (0, 1, 2)
    assert not [name for name in topics if name.startswith("__")]


def test_a_topic_that_does_not_exist_is_named(world):
    catalogue = world.catalogue()
    started = time.monotonic()
    answers = [catalogue.topic("no-such-topic"), catalogue.log(Partition("no-such-topic", 0))]
    for answer in answers:
        with pytest.raises(TopicMissing, match="no-such-topic"):
            answer.result(SECONDS)
    assert time.monotonic() - started < slack(8), "waited for, in case it was just created"


def test_other_questions_do_not_wait_for_a_topic_that_is_missing(world):
    topic = world.topic()
    catalogue = world.catalogue()
    missing = catalogue.topic("no-such-topic")
    assert catalogue.topic(topic).result(SECONDS).name == topic
    assert catalogue.log(Partition(topic, 0)).result(SECONDS).end == 0
    if isinstance(world, KafkaWorld):
        assert not missing.done()


def test_the_logs_range_gives_the_offsets_to_start_from(world):
    """Storm 54: an empty log begins and ends at 0, which is an answer."""
    a = Partition(world.topic(), 0)
    catalogue = world.catalogue()
    topic_id = catalogue.topic(a.topic).result(SECONDS).topic_id
    assert catalogue.log(a).result(SECONDS) == Log(0, 0, topic_id, leader_epoch=0)
    world.append(a, numbers(5))
    world.delete_before(a, 2)
    assert catalogue.log(a).result(SECONDS) == Log(2, 5, topic_id, leader_epoch=0)


def test_a_time_stamp_gives_the_first_offset_that_is_as_young(world):
    a = Partition(world.topic(), 0)
    for ms in (1000, 2000, 3000):
        world.append_one(a, b"v", None, [], 1_700_000_000_000 + ms)
    catalogue = world.catalogue()
    asked = {ms: catalogue.log(a, 1_700_000_000_000 + ms) for ms in (0, 1000, 1500, 3000, 3001)}
    found = {ms: answer.result(SECONDS).at_timestamp for ms, answer in asked.items()}
    assert found == {0: 0, 1000: 0, 1500: 1, 3000: 2, 3001: 3}
    assert catalogue.log(a).result(SECONDS).at_timestamp is None
    empty = Partition(world.topic(), 0)
    assert catalogue.log(empty, 1).result(SECONDS).at_timestamp == 0


def test_many_questions_at_once_are_all_answered(world):
    topic = world.topic(20)
    for number in range(20):
        world.append(Partition(topic, number), numbers(number % 3))
    catalogue = world.catalogue()
    logs = [catalogue.log(Partition(topic, number), number) for number in range(20)]
    found = catalogue.topic(topic)
    _, waiting = wait([*logs, found], SECONDS)
    assert not waiting
    assert [each.result().end for each in logs] == [number % 3 for number in range(20)]


def test_the_ends_of_many_logs_are_one_answer_without_those_that_are_not_known(world):
    topic, other = world.topic(3), world.topic()
    for number in range(3):
        world.append(Partition(topic, number), numbers(number))
    world.append(Partition(other, 0), numbers(4))
    # Of topics that nobody else has led yet, so the epoch is the first.
    known = {Partition(topic, number): LogEnd(number, 0) for number in range(3)}
    known[Partition(other, 0)] = LogEnd(4, 0)
    unknown = [Partition(topic, 7), Partition("no-such-topic", 0)]
    catalogue = world.catalogue()
    assert catalogue.ends([]).result(SECONDS) == {}
    end = Limit(SECONDS)
    while catalogue.ends(known).result(SECONDS) != known:  # as long as a leader is not known
        assert not end.passed
    started = time.monotonic()
    assert catalogue.ends([*known, *unknown]).result(SECONDS) == known
    assert catalogue.ends(unknown).result(SECONDS) == {}
    assert time.monotonic() - started < slack(2), (
        "asked again and again, it must not hold others up"
    )
    world.append(Partition(topic, 0), numbers(5))
    assert catalogue.ends(list(known)[:1]).result(SECONDS) == {Partition(topic, 0): LogEnd(5, 0)}


@pytest.mark.integration
def test_a_log_ends_for_readers_where_a_transaction_is_open(real):
    a = Partition(real.topic(), 0)
    real.append(a, numbers(3))
    producer = real.begin(a, numbers(2))
    catalogue = real.catalogue()
    assert catalogue.log(a).result(SECONDS).end == 3
    assert catalogue.ends([a]).result(SECONDS) == {a: LogEnd(3, 0)}
    producer.commit_transaction(SECONDS)
    end = Limit(SECONDS)
    while catalogue.ends([a]).result(SECONDS) != {
        a: LogEnd(6, 0)
    }:  # once its marker, an offset, is written
        assert not end.passed


def test_partitions_added_to_a_topic_are_seen(world):
    """Faults K07: new partitions show at the next look, under the same topic id."""
    topic = world.topic(1)
    catalogue = world.catalogue()
    before = catalogue.topic(topic).result(SECONDS)
    world.add_partitions(topic, 2)
    end = Limit(SECONDS)
    found = before
    while len(found.partitions) < 3 and not end.passed:
        found = catalogue.topic(topic).result(SECONDS)
    assert found == Topic(topic, before.topic_id, (0, 1, 2))
    assert catalogue.log(Partition(topic, 2)).result(SECONDS).start == 0


def test_a_topic_created_anew_has_another_id(world):
    """Faults K06: the id is what tells a larger log from the one that was there before."""
    a = Partition(world.topic(), 0)
    catalogue = world.catalogue()
    before = catalogue.log(a).result(SECONDS)
    world.recreate_topic(a.topic)
    after = catalogue.log(a).result(SECONDS)
    assert (after.start, after.end) == (before.start, before.end)
    assert after.topic_id not in (None, before.topic_id)


def test_a_deleted_topic_is_missing(world):
    """Faults K05: told as missing, not as an outage."""
    topic = world.topic()
    world.delete_topic(topic)
    with pytest.raises(TopicMissing):
        world.catalogue().topic(topic).result(SECONDS)


def test_a_closed_catalogue_answers_nothing_more(world):
    catalogue = world.catalogue()
    catalogue.close()
    catalogue.close()
    with pytest.raises(KafkaFailed):
        catalogue.topics().result(SECONDS)
    catalogue.open()
    assert world.topic() in catalogue.topics().result(SECONDS)


def test_a_catalogue_that_is_away_says_what_was_asked(world):
    if isinstance(world, KafkaWorld):
        world.properties["bootstrap.servers"] = "127.0.0.1:1"
        catalogue: Any = world.catalogue(ask_seconds=1)
    else:
        catalogue = world.catalogue()
        world.memory.away = True
    started = time.monotonic()
    asked = {
        "for topic 't'": catalogue.topic("t"),
        "for the topics": catalogue.topics(),
        "for the offsets of t[3]": catalogue.log(Partition("t", 3)),
        "for the ends of the logs": catalogue.ends([Partition("t", 3)]),
    }
    for what, answer in asked.items():
        with pytest.raises(KafkaUnavailable, match="Kafka does not answer") as caught:
            answer.result(SECONDS)
        assert caught.value.what == what
    assert time.monotonic() - started < slack(8)


@pytest.mark.integration
def test_a_broker_that_comes_back_in_time_answers(own):
    topic = own.topic(2)
    catalogue = own.catalogue(ask_seconds=SECONDS)
    own.kafka.close()
    answer = catalogue.topic(topic)
    own.kafka.open()
    assert answer.result(SECONDS).partitions == (0, 1)


@pytest.mark.integration
def test_a_frozen_broker_is_given_up_in_time(own):
    """Faults K02: an answer in bounded time, also from a broker that only holds on."""
    topic = own.topic()
    catalogue = own.catalogue(ask_seconds=1.5)
    assert catalogue.topic(topic).result(SECONDS).name == topic
    processes.freeze(own.kafka.pid)
    try:
        started = time.monotonic()
        one = Partition(topic, 0)
        answers = [catalogue.topic(topic), catalogue.log(one), catalogue.topics()]
        answers.append(catalogue.ends([one]))
        for answer in answers:
            with pytest.raises(KafkaUnavailable):
                answer.result(SECONDS)
        assert time.monotonic() - started < slack(10)
    finally:
        processes.thaw(own.kafka.pid)
    assert catalogue.topic(topic).result(SECONDS).name == topic


def test_closing_ends_open_questions_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        catalogue = KafkaCatalogue({"bootstrap.servers": address})
        catalogue.open()
        answers = [catalogue.topics(), catalogue.topic("t"), catalogue.log(Partition("t", 0))]
        started = time.monotonic()
        catalogue.close()
        assert time.monotonic() - started < slack(5)
        for answer in answers:
            with pytest.raises(KafkaUnavailable, match="closed"):
                answer.result(SECONDS)


@pytest.mark.parametrize("asked_before", [True, False])
def test_refused_credentials_are_told_at_once(asked_before):
    """Faults K15: no waiting for what cannot change; librdkafka tells it once in a while."""
    catalogue = KafkaCatalogue({"bootstrap.servers": "127.0.0.1:1"})
    catalogue.open()
    refusal = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")
    if asked_before:
        answer = catalogue.topic("t")
        catalogue._on_error(refusal)
    else:
        catalogue._on_error(refusal)
        answer = catalogue.topic("t")
    started = time.monotonic()
    with pytest.raises(KafkaFailed, match=r"refuses for topic 't'.*_AUTHENTICATION"):
        answer.result(SECONDS)
    assert time.monotonic() - started < slack(3)
    catalogue.close()


def test_a_wrong_property_is_named():
    with pytest.raises(KafkaFailed, match=r"no\.such\.property"):
        KafkaCatalogue({"bootstrap.servers": "127.0.0.1:1", "no.such.property": 1}).open()


@pytest.mark.slow
def test_the_end_of_a_log_is_known_while_its_partition_is_stuck(world):
    """A paused partition learns nothing by fetching, and its lag matters most."""
    topic = world.topic(1)
    place = Partition(topic, 0)
    world.append(place, numbers(1_000))
    done: Future[None] = Future()
    done.set_result(None)
    reader = Consumer(
        world.fetcher(),
        Ways(FaultyStore(), world.catalogue(), lambda _loss: done),
        [topic],
        ConsumerPolicy(AssignmentPolicy(limits=InFlightLimits(max_pending=50)), fetch_records=100),
        random.Random(1),
    )

    def turn() -> PartitionStatistics | None:
        now = time.monotonic()
        reader.poll(now)
        while reader.next_chunk(now) is not None:
            pass  # and nothing is acked: the first record is stuck
        reader.fetch(now, 0.02)
        return next(iter(reader.statistics(now)), None)

    def until(ask: Callable[[PartitionStatistics], bool]) -> None:
        limit = Limit(5.0)
        while (one := turn()) is None or not ask(one):
            assert not limit.passed, one

    try:
        reader.open()
        until(lambda one: one.ledger.emitted_count == 50)
        until(lambda one: one.lag >= 1_000)
        world.append(place, numbers(20_000))
        until(lambda one: one.lag == 21_000)
    finally:
        reader.close()
