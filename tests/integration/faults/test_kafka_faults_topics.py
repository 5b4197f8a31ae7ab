import pytest

from partition.errors import SourceLost
from partition.records import Partition
from tests.support.kafka import numbers

faults = pytest.mark.faults
SOON = {"discover_interval_seconds": 0.3}


@faults
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


@faults
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


@faults
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


@pytest.mark.integration
def test_expired_records_halt_unless_policy_skips_them(world, serve):
    """Promise 12; Faults K09: nothing is skipped in silence, and the others go on."""
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    serving = serve(topic, world)
    world.append(a, numbers(10))
    assert serving.run().problems() == []
    world.append(a, numbers(20))
    world.append(b, numbers(5))
    world.delete_before(a, 16)
    halted = serving.run()
    assert list(halted.halted) == [f"{topic}[0]"]
    assert "expired" in halted.halted[f"{topic}[0]"]
    assert (halted.read, serving.letters()) == (5, [])
    skipped = serving.run(on_data_loss="skip")
    assert (skipped.lost, skipped.read, skipped.problems()) == (6, 14, [])
    (notice,) = serving.letters()
    assert notice["headrace.reason"] == "expired"
    assert notice["headrace.first_offset"] == "10"
    assert notice["headrace.resume_offset"] == "16"


@pytest.mark.integration
def test_recreated_topic_is_another_topic_whatever_its_size(world, serve):
    """Promise 12; Faults K06: its records below the old offset are read, not skipped."""
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    serving = serve(topic, world)
    world.append(a, numbers(10))
    world.append(b, numbers(10))
    assert serving.run().read == 20
    world.recreate_topic(topic, 2)
    world.append(a, numbers(30))
    world.append(b, numbers(5))
    with pytest.raises(SourceLost, match="recreated"):
        serving.run()
    account = serving.run(on_data_loss="skip")
    assert (account.read, account.problems()) == (35, [])
    assert [notice["headrace.reason"] for notice in serving.letters()] == ["recreated"] * 2


@pytest.mark.integration
def test_no_more_than_asked_for_is_left_behind_and_that_is_told(world, serve):
    """Storm 1."""
    topic = world.topic()
    serving = serve(topic, world)
    assert serving.run().read == 0
    world.append(Partition(topic, 0), numbers(50))
    account = serving.run(max_offset_behind=20)
    assert (account.read, account.lost, account.problems()) == (20, 30, [])
    assert [notice["headrace.reason"] for notice in serving.letters()] == ["behind"]
