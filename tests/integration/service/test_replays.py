"""Transactions that are open when their process ends, and whose records the log gives no more.

On a real broker and ZooKeeper.
"""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Record, SinkFailed, Topology, bolt
from headrace.sinks import MemorySink, Staged
from partition.errors import ReplayDiffers
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from service.observability.snapshot import RunSummary
from tests.support.places import Runs

pytestmark = pytest.mark.integration

RECORDS = 10  # published at once
PARTITIONS = 2


@bolt
def text(record: Record) -> str:
    return (record.value or b"").decode()


class Refusing(MemorySink[Any]):
    """Commits nothing while `refuses`, which ends the process; what it has outlives that."""

    refuses = False

    def commit(self, staged: Staged) -> None:
        if self.refuses:
            raise SinkFailed("not today")
        super().commit(staged)


class Place(Runs):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sink = Refusing()

    def run(self) -> RunSummary:
        topology = Topology("replays", reliability="exactly-once")
        topology.source(self.topic).then(text).into(self.sink, batch_seconds=0.05)
        return self.run_through(topology)

    def leave_open(self) -> None:
        """Let a process end between the plan of its transactions and their commits."""
        self.sink.refuses = True
        with pytest.raises(SinkFailed, match="not today"):
            self.run()
        self.sink.refuses = False

    def publish_some(self, partition: int) -> list[str]:
        values = [f"{uuid.uuid4()}" for _ in range(RECORDS)]
        self.publish(partition, values)
        return values


@pytest.fixture
def place(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, topic: Callable[..., str]) -> Place:
    return Place(kafka, zookeeper, topic(PARTITIONS))


def test_unreplayable_open_transaction_halts_its_partition(
    place: Place,
) -> None:
    """Promises 12 and 14: it says what differs, and writes nothing of what the log has instead."""
    place.publish_some(0)
    place.leave_open()
    place.expire(0, RECORDS // 2)
    rows = place.publish_some(1)
    account = place.run()
    assert list(account.halted) == [f"{place.topic}[0]"], "the other is read on"
    reason = account.halted[f"{place.topic}[0]"]
    assert f"transaction 1 was of offsets 0 to {RECORDS} ({RECORDS} records)" in reason
    assert f"the log holds {RECORDS // 2} to {RECORDS}" in reason
    assert place.sink.rows == rows
    place.publish_some(1)
    place.leave_open()
    place.make_again(PARTITIONS)
    for partition in [*range(PARTITIONS)] * 2:  # at least as many as there were
        place.publish_some(partition)
    with pytest.raises(ReplayDiffers, match=r"transaction \d+ .* deleted and created again"):
        place.run()
    assert place.sink.rows == rows
