"""Z13: ZooKeeper has lost its data, or has older data than it had."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from kazoo.exceptions import NoNodeError

from partition.errors import PartitionError, SinkAhead, StoreBehind
from partition.records import Partition
from service.devservers.servers import EmbeddedZooKeeper
from tests.acceptance import stored
from tests.support.kafka import KafkaWorld, numbers
from tests.support.servers import opened
from tests.support.service import Serving
from topology.topology import Reliability

pytestmark = pytest.mark.faults

MOST_STARTS = 10
# What kazoo says where a server ends a connection: it has older data than the client has seen.
SENT_AWAY = "Connection dropped: socket connection broken"
SHARED = {"beat_seconds": 0.2, "name": "a"}
EACH = pytest.mark.parametrize("reliability", ["at-least-once", "exactly-once"])


class Losing(EmbeddedZooKeeper):
    @property
    def data(self) -> Path:
        return self.state_dir / "zookeeper-data"

    def copy(self, name: str) -> Path:
        self.close()
        kept = self.state_dir / name
        shutil.copytree(self.data, kept)
        self.open()
        return kept

    def put_back(self, kept: Path | None) -> None:
        """Go on with other data than there were; None: with none."""
        self.close()
        shutil.rmtree(self.data)
        if kept is not None:
            shutil.copytree(kept, self.data)
        self.open()


@pytest.fixture
def losing(tmp_path):
    with opened(Losing(tmp_path / "zookeeper")) as server:
        yield server


class Place:
    def __init__(self, world: KafkaWorld, zookeeper: Losing, reliability: Reliability) -> None:
        self.zookeeper = zookeeper
        self.topic = world.topic()
        self.serving = Serving(
            self.topic, world.properties, zookeeper.address, reliability=reliability
        )
        self.end = 0
        self._world = world

    def publish(self, count: int) -> None:
        self._world.append(Partition(self.topic, 0), numbers(count, self.end))
        self.end += count

    def written(self) -> Counter[int]:
        return Counter(self.serving.offsets(0))

    def offset(self) -> int | None:
        with stored.client(self.zookeeper.address) as client:
            folder = f"{self.serving.root}/faults/{self.topic}"
            return stored.read(client, folder).get(0)


@pytest.fixture
def make(world, losing):
    return lambda reliability: Place(world, losing, reliability)


@EACH
def test_run_stops_if_zookeeper_has_lost_its_data(make, reliability, caplog):
    """Promises 8 and 9; Faults Z13: it waits, stores nothing there, and goes on with the data."""
    place = make(reliability)
    place.publish(50)
    with place.serving.runs() as running:
        running.committed(place.topic, {0: 50})
        kept = place.zookeeper.copy("kept")
        running.until("ready again", lambda: not running.problems)
        place.zookeeper.put_back(None)
        caplog.clear()
        place.publish(30)
        running.until("it is sent away, twice", lambda: caplog.messages.count(SENT_AWAY) > 1)
        assert running.problems == ("ZooKeeper is away",)
        assert running.figure("headrace_service_zookeeper_available_state") == 0
        with stored.client(place.zookeeper.address) as client, pytest.raises(NoNodeError):
            client.get(place.serving.root)
        assert running.of("committed_offset", place.topic, 0) == 50
        place.zookeeper.put_back(kept)
        running.committed(place.topic, {0: 80})
        running.until("ready again", lambda: not running.problems)
        account = running.end()
    assert place.written() == Counter(range(80))
    assert place.offset() == 80
    assert account.problems() == []


def test_exactly_once_halts_if_the_sink_is_ahead(make):
    """Promise 9; Faults Z13: a node that is new has a smaller epoch than the sink."""
    place = make("exactly-once")
    for _ in range(3):  # each raises the epoch
        place.publish(10)
        place.serving.run()
    place.zookeeper.put_back(None)
    errors = refused(place)
    assert isinstance(errors[0], StoreBehind)
    assert "epoch 3" in str(errors[0])
    assert isinstance(errors[-1], SinkAhead), "once the epoch has caught up, the txids differ"
    assert {type(error) for error in errors} == {StoreBehind, SinkAhead}
    told = [event["error"] for event in place.serving.events("partition_halted")]
    assert told == [str(error) for error in errors]


def test_exactly_once_older_data_are_not_gone_on_with(make):
    """Promise 9; Faults Z13: a backup of which the sink has seen later epochs and transactions."""
    place = make("exactly-once")
    place.publish(10)
    place.serving.run()
    kept = place.zookeeper.copy("kept")
    for _ in range(3):
        place.publish(10)
        place.serving.run()
    newest = place.zookeeper.copy("newest")
    place.zookeeper.put_back(kept)
    errors = refused(place)
    assert isinstance(errors[0], StoreBehind)
    assert isinstance(errors[-1], SinkAhead)
    place.zookeeper.put_back(newest)
    place.publish(10)
    place.serving.run()
    assert place.written() == Counter(range(place.end))
    assert place.offset() == place.end


def test_exactly_once_a_replica_among_others_halts_too(make):
    """Promise 9; Faults Z13: it does not try until its epoch has passed the sink's."""
    place = make("exactly-once")
    for _ in range(4):
        place.publish(10)
        place.serving.run()
    place.zookeeper.put_back(None)
    with place.serving.runs(replicas=SHARED) as running:
        error = running.failed()
    assert isinstance(error, StoreBehind), "with all halted there is nothing to run for"
    assert "epoch 4" in str(error)
    assert place.serving.events("partition_given_up") == []
    assert place.written() == Counter(range(place.end))


def refused(place: Place) -> list[PartitionError]:
    """Start again and again until it is SinkAhead that ends it: nothing is written by it."""
    place.publish(10)  # that nobody may read before it is known where to go on
    before = place.written()
    errors: list[PartitionError] = []
    while not errors or isinstance(errors[-1], StoreBehind):
        assert len(errors) < MOST_STARTS
        with pytest.raises(PartitionError) as caught:
            place.serving.run()
        errors.append(caught.value)
        assert place.written() == before
    return errors


def test_at_least_once_older_offsets_repeat_and_lose_nothing(make):
    """Promise 1; Faults Z13: the sink has no epoch to compare with."""
    place = make("at-least-once")
    place.publish(20)
    place.serving.run()
    kept = place.zookeeper.copy("kept")
    place.publish(20)
    place.serving.run()
    place.zookeeper.put_back(kept)
    place.publish(20)
    account = place.serving.run()
    assert place.serving.events("partition_resumed")[-1]["offset"] == 20
    assert place.written() == Counter(range(60)) + Counter(range(20, 40))
    assert place.offset() == 60
    assert account.problems() == []


def test_at_least_once_lost_offsets_are_a_first_start(make):
    """Promise 1; Faults Z13: `partition_started` where `partition_resumed` was to come."""
    place = make("at-least-once")
    place.publish(20)
    place.serving.run()
    place.zookeeper.put_back(None)
    place.publish(20)
    place.serving.run()
    assert [each["offset"] for each in place.serving.events("partition_started")] == [0, 0]
    assert place.serving.events("partition_resumed") == []
    assert place.written() == Counter(range(40)) + Counter(range(20))
    assert place.offset() == 40
