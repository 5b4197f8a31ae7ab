"""Leaders that move, and one that has lost records: on three brokers and a ZooKeeper."""

import json
import uuid

import pytest
from confluent_kafka import Producer

from partition.records import Partition
from service.devservers.servers import EmbeddedZooKeeper
from tests.acceptance import stored
from tests.support.kafka import SECONDS, numbers
from tests.support.kafka_cluster import KafkaCluster
from tests.support.servers import opened
from tests.support.service import Serving

pytestmark = pytest.mark.faults
MOVES = 3
NOBODY = -1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with opened(KafkaCluster(tmp_path_factory.mktemp("cluster"))) as made:
        yield made


@pytest.fixture
def topic(cluster):
    """Its partition 0 lies on brokers 2 and 3, and is led by 2; its partition 1 is led by 1."""
    cluster.open()
    name = f"t-{uuid.uuid4().hex[:12]}"
    cluster.create_topic(name, [[2, 3], [1, 2]])
    return name


@pytest.fixture
def serving(cluster, zookeeper, topic):
    properties = {"bootstrap.servers": cluster.addresses}
    # The letters' topic has one replica: it is to lie where nothing is stopped.
    cluster.create_topic(f"{topic}.dead", [[1]])
    return Serving(topic, properties, zookeeper.address)


def append(cluster: KafkaCluster, partition: Partition, values: list[bytes]) -> None:
    """Write records so that every replica in sync has them."""
    properties = {"bootstrap.servers": cluster.addresses, "acks": "all"}
    producer = Producer({**properties, "enable.idempotence": True, "linger.ms": 0})
    for value in values:
        producer.produce(partition.topic, value, partition=partition.number)
    assert producer.flush(SECONDS) == 0


def stored_epoch(zookeeper: EmbeddedZooKeeper, serving: Serving, partition: int) -> int:
    """The leader epoch of the record before the stored offset."""
    with stored.client(zookeeper.address) as client:
        path = f"{serving.root}/faults/{serving.topics[0]}/partition_{partition}"
        return int(json.loads(client.get(path)[0])["headrace"]["leader_epoch"])


def test_repeated_leader_deaths_lose_and_repeat_nothing(cluster, zookeeper, serving, topic):
    """Promise 15; Faults K03: reading goes on at the new leader, whose epoch is stored."""
    a, b = Partition(topic, 0), Partition(topic, 1)
    epochs = []
    count = 0
    with serving.runs() as running:
        for move in range(MOVES):
            leader, other = (2, 3) if move % 2 == 0 else (3, 2)
            cluster.until(a, lambda first, isr: first == leader and isr == {2, 3})  # noqa: B023
            append(cluster, a, numbers(50, count))
            append(cluster, b, numbers(10))
            count += 50
            running.committed(topic, {0: count, 1: 10 * (move + 1)})
            epochs.append(stored_epoch(zookeeper, serving, 0))
            cluster.brokers[leader].kill()
            cluster.led_by(a, other)
            append(cluster, a, numbers(50, count))
            count += 50
            running.committed(topic, {0: count})
            running.until("ready", lambda: not running.problems)
            cluster.brokers[leader].open()
        account = running.end()
    epochs.append(stored_epoch(zookeeper, serving, 0))
    assert epochs == sorted(set(epochs)), "each leader's epoch is above that of the one before"
    assert serving.offsets(0) == list(range(count))
    assert serving.offsets(1) == list(range(10 * MOVES))
    assert sorted(int(row[3] or b"") for row in serving.rows if row[0] == 0) == list(range(count))
    assert account.problems() == []
    assert account.lost == 0
    assert serving.events("partition_halted") == []


def test_a_leader_moved_in_order_is_followed_without_an_outage(cluster, serving, topic):
    """Promise 15; Faults K03: an election among living brokers is nothing to be told of."""
    a = Partition(topic, 0)
    cluster.brokers[2].close()
    cluster.led_by(a, 3)
    cluster.brokers[2].open()
    cluster.until(a, lambda _leader, isr: isr == {2, 3})
    with serving.runs() as running:
        append(cluster, a, numbers(50))
        running.committed(topic, {0: 50})
        cluster.elect(a)
        cluster.led_by(a, 2)
        append(cluster, a, numbers(50, 50))
        running.committed(topic, {0: 100})
        running.end()
    assert serving.offsets(0) == list(range(100))
    assert serving.events("partition_halted") == []


def test_unclean_election_loss_halts_the_partition(cluster, serving, topic):
    """Promise 12; Faults K04: new records that stand where others were read are not skipped."""
    a, b = Partition(topic, 0), Partition(topic, 1)
    cluster.until(a, lambda _leader, isr: isr == {2, 3})
    append(cluster, a, numbers(60))
    with serving.runs() as running:
        running.committed(topic, {0: 60, 1: 0})
        cluster.brokers[3].kill()
        cluster.until(a, lambda leader, isr: leader == 2 and isr == {2})
        append(cluster, a, numbers(40, 60))
        running.committed(topic, {0: 100})
        cluster.brokers[2].kill()
        cluster.led_by(a, NOBODY)
        cluster.brokers[3].open()
        cluster.elect(a, unclean=True)
        cluster.led_by(a, 3)
        append(cluster, a, numbers(80, 1000))
        running.until("it is halted", lambda: running.of("halted_state", topic, 0) == 1)
        assert any("truncated" in problem for problem in running.problems)
        append(cluster, b, numbers(5))
        running.committed(topic, {1: 5})
        account = running.end()
    assert "truncated" in account.halted[f"{topic}[0]"]
    assert account.partitions[f"{topic}[0]"].committed == 100
    assert serving.offsets(0) == list(range(100)), "nothing of what stands there now"
    with serving.runs(on_data_loss="skip") as running:
        running.committed(topic, {0: 140})
        labels = f'topic="{topic}",partition="0",reason="truncated"'
        assert running.figure(f"headrace_partition_source_lost_records_total{{{labels}}}") == 40
        running.until("ready", lambda: not running.problems)
        running.end()
    values = [row[3] for row in serving.rows if row[0] == 0]
    assert sorted(values, key=lambda value: int(value or b"")) == numbers(100) + numbers(80, 1000)
    (notice,) = serving.letters()
    assert notice["headrace.reason"] == "truncated"
    assert (notice["headrace.first_offset"], notice["headrace.resume_offset"]) == ("100", "60")
