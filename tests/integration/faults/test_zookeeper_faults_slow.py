"""Z03: a ZooKeeper that answers everything, and slowly."""

import time
from collections import Counter

import pytest

from partition.records import Partition
from tests.support.kafka import KafkaWorld, numbers
from tests.support.network import Relay
from tests.support.service import Running, Serving

pytestmark = pytest.mark.faults

DELAY = 0.5  # seconds each way
PARTITIONS = 4
RECORDS = 100  # of each partition, in one part
PARTS = 5
FRESH_SECONDS = 2.0  # far less than the answers to all that is asked would take
TAKEN = "headrace_service_written_records_total"
COMMIT = "headrace_service_commit_seconds"


@pytest.fixture
def relay(zookeeper):
    made = Relay(zookeeper.port)
    yield made
    made.close()


def publish(world: KafkaWorld, topic: str, part: int) -> None:
    for number in range(PARTITIONS):
        world.append(Partition(topic, number), numbers(RECORDS, part * RECORDS))


def taken_at(running: Running) -> float:
    return 0.0 if running.snapshot is None else running.snapshot.taken_at


@pytest.mark.parametrize("reliability", ["at-least-once", "exactly-once"])
def test_a_slow_server_delays_offsets_and_blocks_nothing(world, relay, reliability):
    """Promise 2; Faults Z03: the loop turns, and one commit takes all that has moved meanwhile."""
    topic = world.topic(PARTITIONS)
    serving = Serving(topic, world.properties, relay.address, reliability=reliability)
    publish(world, topic, 0)
    with serving.runs() as running:
        running.committed(topic, dict.fromkeys(range(PARTITIONS), RECORDS))
        assert running.figure(COMMIT) < 2 * DELAY
        relay.delay = DELAY
        stood = 0.0
        for part in range(1, PARTS):
            publish(world, topic, part)
            wanted = (part + 1) * RECORDS * PARTITIONS

            def is_done(wanted: int = wanted) -> bool:
                nonlocal stood
                stood = max(stood, time.monotonic() - taken_at(running))
                return running.figure(TAKEN) >= wanted

            running.until("all is written", is_done)
            assert running.problems == ()
            if reliability == "at-least-once" and part == 1:
                behind = [running.of("committed_offset", topic, n) for n in range(PARTITIONS)]
                assert max(behind) < 2 * RECORDS, "they are written before their offsets are stored"
        ends = dict.fromkeys(range(PARTITIONS), PARTS * RECORDS)
        running.committed(topic, ends)
        running.until("the commit has ended", lambda: running.figure(COMMIT) >= 2 * DELAY)
        assert stood < FRESH_SECONDS, "the loop waited for an answer"
        relay.delay = 0.0
        publish(world, topic, PARTS)
        running.committed(topic, dict.fromkeys(range(PARTITIONS), (PARTS + 1) * RECORDS))
        account = running.end()
    assert account.problems() == []
    assert account.unresolved == 0
    assert Counter((row[0], row[1]) for row in serving.rows) == Counter(
        (number, offset) for number in range(PARTITIONS) for offset in range((PARTS + 1) * RECORDS)
    )
    assert serving.events("zookeeper_session_ended") == []
    assert serving.events("commit_read_back") == []


@pytest.mark.parametrize("reliability", ["at-least-once", "exactly-once"])
def test_connection_cut_amid_slow_answers_is_harmless(world, relay, reliability):
    """Promise 2; Faults Z03 and Z12: what was on its way either way is read back."""
    topic = world.topic(PARTITIONS)
    serving = Serving(topic, world.properties, relay.address, reliability=reliability)
    with serving.runs() as running:
        running.until("all are open", lambda: not running.problems)
        relay.delay = DELAY
        for part in range(PARTS):
            publish(world, topic, part)
            running.until("a commit is under way", lambda: running.figure(COMMIT) > 0)
            relay.cut()
            running.until("it is seen", lambda: "ZooKeeper is away" in running.problems)
            running.until("it is back", lambda: not running.problems)
        running.committed(topic, dict.fromkeys(range(PARTITIONS), PARTS * RECORDS))
        account = running.end()
    assert account.problems() == []
    assert Counter((row[0], row[1]) for row in serving.rows) == Counter(
        (number, offset) for number in range(PARTITIONS) for offset in range(PARTS * RECORDS)
    )
    assert serving.events("zookeeper_session_ended") == []
