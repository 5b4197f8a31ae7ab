"""A service whose records are lost before it reads them: on a real broker and ZooKeeper."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace import Topology, bolt
from headrace.sinks import DiscardSink
from partition.errors import SourceLost
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from service.observability.snapshot import RunSummary
from tests.support.places import SECONDS, Runs

pytestmark = pytest.mark.integration


@bolt
def pass_on(record: object) -> object:
    return record


class Place(Runs):
    def run(self, **pipeline: Any) -> RunSummary:
        topology = Topology("losses")
        topology.source(self.topic).then(pass_on).into(DiscardSink(), batch_seconds=0.05)
        return self.run_through(topology, **pipeline)

    def notices(self) -> list[dict[str, str]]:
        """The headers of what is in the dead-letter topic."""
        end = TopicPartition(self.dead, 0)
        offsets = self.admin.list_offsets({end: OffsetSpec.latest()})
        count = next(iter(offsets.values())).result(SECONDS).offset
        consumer = Consumer({"bootstrap.servers": self.kafka.address, "group.id": "r"})
        try:
            consumer.assign([TopicPartition(self.dead, 0, 0)])
            found = consumer.consume(count, SECONDS) if count else []
        finally:
            consumer.close()
        headers = [dict(message.headers() or []) for message in found]
        return [{key: value.decode() for key, value in each.items()} for each in headers]


@pytest.fixture
def place(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, topic: Callable[..., str]) -> Place:
    return Place(kafka, zookeeper, topic(2))


def test_expired_records_halt_unless_policy_skips_them(place: Place) -> None:
    """Promise 12; Faults K09: nothing is skipped in silence, and the others go on."""
    place.publish(0, ["x"] * 10)
    place.publish(1, ["x"] * 10)
    assert place.run().problems() == []
    place.publish(0, ["x"] * 10)
    place.publish(1, ["x"] * 5)
    place.expire(0, 16)
    halted = place.run()
    assert list(halted.halted) == [f"{place.topic}[0]"]
    assert "expired" in halted.halted[f"{place.topic}[0]"]
    assert halted.read == 5
    assert halted.problems()
    assert place.notices() == []
    skipped = place.run(on_data_loss="skip")
    assert (skipped.lost, skipped.read, skipped.problems()) == (6, 4, [])
    (notice,) = place.notices()
    assert notice["headrace.notice"] == "range"
    assert notice["headrace.reason"] == "expired"
    assert notice["headrace.first_offset"] == "10"
    assert notice["headrace.resume_offset"] == "16"


def test_recreated_topic_is_another_topic_whatever_its_size(place: Place) -> None:
    """Promise 12; Faults K06: its records below the old offset are read, not skipped."""
    place.publish(0, ["x"] * 10)
    place.publish(1, ["x"] * 10)
    assert place.run().read == 20
    place.make_again(2)
    place.publish(0, ["x"] * 30)
    place.publish(1, ["x"] * 5)
    with pytest.raises(SourceLost, match="recreated"):
        place.run()
    account = place.run(on_data_loss="skip")
    assert account.problems() == []
    assert account.read == 35
    assert [notice["headrace.reason"] for notice in place.notices()] == ["recreated"] * 2


def test_no_more_than_asked_for_is_left_behind_and_that_is_told(place: Place) -> None:
    """Storm 1."""
    assert place.run().read == 0
    place.publish(0, ["x"] * 50)
    account = place.run(max_offset_behind=20)
    assert (account.read, account.lost, account.problems()) == (20, 30, [])
    assert [notice["headrace.reason"] for notice in place.notices()] == ["behind"]
