"""Topics that change under a service which reads them: on a real broker and ZooKeeper."""

import pytest

from partition.errors import SourceLost
from partition.records import Partition
from tests.support.kafka import numbers

pytestmark = pytest.mark.faults
SOON = {"discover_interval_seconds": 0.3}


def test_deleted_topic_makes_the_service_unready(world, serve):
    """Promise 12; Faults K05: its partitions halt and are looked for; the others go on."""
    other = world.topic()
    gone = world.topic(2)
    world.append(Partition(gone, 0), numbers(5))
    serving = serve([gone, other], world)
    with serving.runs(**SOON) as running:
        running.committed(gone, {0: 5, 1: 0})
        running.until("ready", lambda: not running.problems)
        world.delete_topic(gone)
        running.until(
            "both are halted",
            lambda: [running.of("halted_state", gone, each) for each in (0, 1)] == [1, 1],
        )
        assert any(f"{gone}[0] is halted" in problem for problem in running.problems)
        world.append(Partition(other, 0), numbers(7))
        running.committed(other, {0: 7})
        running.until("it is asked for again", lambda: serving.events("discovery_failed"))
        account = running.end()
    assert list(account.halted) == [f"{gone}[0]", f"{gone}[1]"]
    assert account.partitions[f"{gone}[0]"].committed == 5
    halted = serving.events("partition_halted")
    assert {event["partition"] for event in halted} == set(account.halted)


def test_recreated_topic_halts_until_policy_allows_it(world, serve):
    """Promise 12; Faults K06: the new records are read from the first, once that is wanted."""
    other = world.topic()
    again = world.topic()
    world.append(Partition(again, 0), numbers(20))
    serving = serve([again, other], world)
    with serving.runs(**SOON) as running:
        running.committed(again, {0: 20})
        world.recreate_topic(again)
        world.append(Partition(again, 0), numbers(50))
        running.says("created again")
        world.append(Partition(other, 0), numbers(3))
        running.committed(other, {0: 3})
        running.end()
    assert len(serving.rows) == 23, "nothing of the new topic was read"
    assert serving.letters() == []
    with serving.runs(on_data_loss="skip", **SOON) as running:
        running.committed(again, {0: 50})
        account = running.end()
    assert account.read == 50
    assert account.problems() == []
    (notice,) = serving.letters()
    assert notice["headrace.reason"] == "recreated"
    assert notice["headrace.first_offset"] == "20"
    assert notice["headrace.resume_offset"] == "0"
    (lost,) = serving.events("source_lost_records")
    assert lost["reason"] == "recreated"


def test_added_partitions_are_read_from_their_beginning(world, serve):
    """Promise 7; Faults K07: what was written before they were found is not skipped."""
    topic = world.topic()
    first = Partition(topic, 0)
    world.append(first, numbers(5))
    serving = serve(topic, world)
    with serving.runs(start_from="latest", **SOON) as running:
        running.committed(topic, {0: 5})
        world.add_partitions(topic, 2)
        world.append(Partition(topic, 1), numbers(11))
        world.append(Partition(topic, 2), numbers(12))
        world.append(first, numbers(1))
        running.committed(topic, {0: 6, 1: 11, 2: 12})
        running.until("ready", lambda: not running.problems)
        running.end()
    assert serving.offsets(0) == [5]
    assert serving.offsets(1) == list(range(11))
    assert serving.offsets(2) == list(range(12))
    started = {event["partition"]: event["offset"] for event in serving.events("partition_started")}
    assert started == {f"{topic}[0]": 5, f"{topic}[1]": 0, f"{topic}[2]": 0}


def test_records_lost_to_retention_are_never_skipped_silently(world, serve):
    """Promise 12; Faults K09: halted while it runs, and skipped only by policy, and counted."""
    topic = world.topic(2)
    slow, other = Partition(topic, 0), Partition(topic, 1)
    serving = serve(topic, world)
    with serving.runs() as running:
        running.committed(topic, {0: 0, 1: 0})
        running.end()
    world.append(slow, numbers(30))
    world.append(other, numbers(5))
    world.delete_before(slow, 16)
    with serving.runs() as running:
        running.until("it is halted", lambda: running.of("halted_state", topic, 0) == 1)
        running.committed(topic, {1: 5})
        assert any("expired" in problem for problem in running.problems)
        running.end()
    assert serving.offsets(0) == []
    with serving.runs(on_data_loss="skip") as running:
        running.committed(topic, {0: 30, 1: 5})
        name = "headrace_partition_source_lost_records_total"
        labels = f'topic="{topic}",partition="0",reason="expired"'
        assert running.figure(f"{name}{{{labels}}}") == 16
        running.end()
    assert serving.offsets(0) == list(range(16, 30))
    (notice,) = serving.letters()
    assert (notice["headrace.reason"], notice["headrace.lost"]) == ("expired", "16")


def test_recreated_only_topic_ends_the_service_with_a_reason(world, serve):
    """Promise 12; Faults K06: with every partition halted there is nothing to run for."""
    topic = world.topic()
    world.append(Partition(topic, 0), numbers(20))
    serving = serve(topic, world)
    with serving.runs(**SOON) as running:
        running.committed(topic, {0: 20})
        world.recreate_topic(topic)
        world.append(Partition(topic, 0), numbers(50))
        error = running.failed()
    assert isinstance(error, SourceLost)
    assert "recreated" in str(error)
