import pytest

from partition.errors import ReplayDiffers
from partition.records import Partition
from tests.support.kafka import SECONDS, numbers
from topology.errors import SinkFailed

HELD = "transaction_wait_seconds"


@pytest.mark.faults
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


@pytest.mark.integration
def test_unreplayable_open_transaction_halts_its_partition(world, serve, monkeypatch):
    """Promises 12 and 14: it says what differs, and writes nothing of what the log has instead."""
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    serving = serve(topic, world, reliability="exactly-once")

    def refuse(_staged):
        raise SinkFailed("not today")

    def leave_open():
        """End between the plan of transactions and their commits."""
        with monkeypatch.context() as patch:
            patch.setattr(serving.sink, "commit", refuse)
            with pytest.raises(SinkFailed, match="not today"):
                serving.run()

    world.append(a, numbers(10))
    leave_open()
    world.delete_before(a, 5)
    world.append(b, numbers(10))
    account = serving.run()
    assert list(account.halted) == [f"{topic}[0]"], "the other is read on"
    reason = account.halted[f"{topic}[0]"]
    assert "transaction 1 was of offsets 0 to 10 (10 records)" in reason
    assert "the log holds 5 to 10" in reason
    assert (serving.offsets(0), serving.offsets(1)) == ([], list(range(10)))
    world.append(b, numbers(10))
    leave_open()
    world.recreate_topic(topic, 2)
    for partition in (a, b):
        world.append(partition, numbers(20))  # at least as many as there were
    with pytest.raises(ReplayDiffers, match=r"transaction \d+ .* deleted and created again"):
        serving.run()
    assert len(serving.rows) == 10
