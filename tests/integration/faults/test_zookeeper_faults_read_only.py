"""Z09: of three ZooKeeper servers one is left, which answers what is read and takes no writes."""

from collections import Counter
from contextlib import closing

import pytest

from partition.errors import StoreUnavailable
from partition.records import Partition
from tests.support.kafka import numbers
from tests.support.service import Serving
from tests.support.zookeeper import ZooKeeperEnsemble, read_only

pytestmark = pytest.mark.faults

TAKEN = "headrace_service_written_records_total"


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    with closing(ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble"))) as made:
        yield made


@pytest.fixture
def ensemble(started):
    started.open()
    return started


@pytest.mark.parametrize("reliability", ["at-least-once", "exactly-once"])
def test_read_only_zookeeper_counts_as_away(ensemble, world, reliability):
    """Promise 2; Faults Z09: not ready, and nothing that must be stored first is emitted."""
    topic = world.topic()
    one = Partition(topic, 0)
    serving = Serving(topic, world.properties, ensemble.hosts, reliability=reliability)
    world.append(one, numbers(50))
    with serving.runs() as running:
        running.committed(topic, {0: 50})
        running.until("ready", lambda: not running.problems)
        left = ensemble.leave_one()
        before = read_only(left)
        world.append(one, numbers(30, 50))
        running.until("it is seen", lambda: running.problems == ("ZooKeeper is away",))
        assert running.figure("headrace_service_zookeeper_available_state") == 0
        if reliability == "at-least-once":
            running.until("they are written", lambda: running.figure(TAKEN) == 80)
        else:
            running.until("they are read", lambda: running.of("pending_records", topic, 0) == 30)
            assert running.figure(TAKEN) == 50
        assert read_only(left) == before
        assert running.of("committed_offset", topic, 0) == 50
        assert running.problems == ("ZooKeeper is away",)
        ensemble.open()
        running.committed(topic, {0: 80})
        running.until("ready again", lambda: not running.problems)
        account = running.end()
    assert account.problems() == []
    assert account.unresolved == 0
    assert Counter(serving.offsets(0)) == Counter(range(80))
    assert serving.events("partition_halted") == []


@pytest.mark.parametrize("reliability", ["at-least-once", "exactly-once"])
def test_start_at_a_read_only_zookeeper_fails_without_loss(ensemble, world, reliability):
    """Promise 8; Faults Z09: what it would answer is not taken for all that there is."""
    topic = world.topic()
    one = Partition(topic, 0)
    serving = Serving(topic, world.properties, ensemble.hosts, reliability=reliability)
    world.append(one, numbers(20))
    serving.run()
    left = ensemble.leave_one()
    before = read_only(left)
    world.append(one, numbers(20, 20))
    with pytest.raises(StoreUnavailable, match="there is no connection"):
        serving.run()
    assert read_only(left) == before
    ensemble.open()
    serving.run()
    assert Counter(serving.offsets(0)) == Counter(range(40))
    assert [event["offset"] for event in serving.events("partition_resumed")] == [20]
