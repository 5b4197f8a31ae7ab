"""A producer that begins a transaction and never ends it: on a real broker."""

import pytest

from partition.records import Partition
from tests.support.kafka import SECONDS, numbers

pytestmark = pytest.mark.faults
HELD = "transaction_wait_seconds"


def test_endless_transaction_is_reported_with_its_offset(world, serve, monkeypatch):
    """Promise 15; Faults K13: unready and told, with the offset; then all is read, once."""
    monkeypatch.setattr(
        "service.observability.health.TRANSACTION_SECONDS", 3.0
    )  # instead of minutes
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    serving = serve(topic, world)
    world.append(a, numbers(3))
    with serving.runs() as running:
        running.committed(topic, {0: 3})
        assert running.of(HELD, topic, 0) == 0
        producer = world.begin(a, numbers(2, 3))
        world.append(a, numbers(4, 5))
        running.until("it is seen", lambda: running.of(HELD, topic, 0) > 0)
        running.says(f"{topic}[0]")
        (problem,) = running.problems
        assert "transaction" in problem
        assert "offset 3" in problem
        assert running.of("committed_offset", topic, 0) == 3
        assert running.of("lag_records", topic, 0) == 6
        world.append(b, numbers(5))
        running.committed(topic, {1: 5})
        producer.abort_transaction(SECONDS)
        running.committed(topic, {0: 10})
        running.until("ready", lambda: not running.problems)
        assert running.of(HELD, topic, 0) == 0
        account = running.end()
    assert serving.offsets(0) == [0, 1, 2, 5, 6, 7, 8]
    assert account.problems() == []
