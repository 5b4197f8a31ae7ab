"""Z14: a ZooKeeper that takes less in one request than a commit is large."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partition.chunk import Partition
from partition.errors import StoreError
from service.embedded.kafka import EmbeddedKafka
from service.embedded.zookeeper import EmbeddedZooKeeper
from tests.worlds.fetching import KafkaWorld, numbers
from tests.worlds.serving import Serving
from topology.topology import Reliability

pytestmark = pytest.mark.faults

PARTITIONS = 40
RECORDS = 20
SMALL = 4_096  # a commit of all partitions has over 20,000 bytes
TINY = 256  # less than one partition's node


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A server with the limit that the test is parametrised with."""
    server = EmbeddedZooKeeper(tmp_path / "zookeeper", flags=[f"-Djute.maxbuffer={request.param}"])
    server.open()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def world(kafka: EmbeddedKafka, topic: Callable[..., str]) -> Iterator[KafkaWorld]:
    made = KafkaWorld(kafka, topic)
    yield made
    made.close()


@pytest.mark.parametrize("small", [SMALL], indirect=True)
@pytest.mark.parametrize("reliability", ["at-least-once", "exactly-once"])
def test_a_commit_that_is_too_large_for_the_server_is_split(
    small: EmbeddedZooKeeper, world: KafkaWorld, reliability: Reliability
) -> None:
    """Faults Z14: the connection ends at it without a word, and is not tried for ever."""
    topic = world.topic(PARTITIONS)
    serving = Serving(topic, world.properties, small.address, reliability=reliability)
    for number in range(PARTITIONS):
        world.append(Partition(topic, number), numbers(RECORDS))
    with serving.runs() as running:
        running.committed(topic, dict.fromkeys(range(PARTITIONS), RECORDS))
        for number in range(PARTITIONS):
            world.append(Partition(topic, number), numbers(RECORDS, RECORDS))
        running.committed(topic, dict.fromkeys(range(PARTITIONS), 2 * RECORDS))
        running.until("ready", lambda: not running.problems)
        account = running.end()
    splits = [event["bytes"] for event in serving.events("commit_split")]
    assert splits
    # What is reckoned of a request is more than it has, so a limit above the server's may do.
    assert splits[-1] < 2 * SMALL
    assert account.gaps() == []
    assert account.unresolved == 0
    assert Counter((row[0], row[1]) for row in serving.rows) == Counter(
        (number, offset) for number in range(PARTITIONS) for offset in range(2 * RECORDS)
    )


@pytest.mark.parametrize("small", [TINY], indirect=True)
@pytest.mark.parametrize("reliability", ["at-least-once", "exactly-once"])
def test_a_server_that_takes_not_even_one_node_ends_the_run_with_the_reason(
    small: EmbeddedZooKeeper, world: KafkaWorld, reliability: Reliability
) -> None:
    """Faults Z14: nothing was emitted before its offset had a place."""
    topic = world.topic()
    world.append(Partition(topic, 0), numbers(RECORDS))
    serving = Serving(topic, world.properties, small.address, reliability=reliability)
    with pytest.raises(StoreError, match=r"10 writes in a row got no reply.*jute\.maxbuffer"):
        serving.run()
    (halted,) = serving.events("partition_halted")
    assert "jute.maxbuffer" in halted["error"]
    assert serving.rows == []
