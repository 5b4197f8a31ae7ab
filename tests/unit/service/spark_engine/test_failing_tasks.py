"""What becomes of a task that cannot be done: who is told, and what is left behind."""

from headrace import Record
from partition.records import Partition, Position
from service.spark_engine.task import TaskFailed, TaskRange
from tests.support.spark_tasks import TaskWorld, numbers, ranged, rows_in, text, texts
from topology.bolt import Bolt


def test_a_log_that_lacks_the_range_fails_the_task_and_names_the_partition() -> None:
    """Promise 12."""
    world = TaskWorld(text, partitions=2, batch_rows=10)
    for number in (0, 1):
        world.tasks.send(*numbers(100), partition=number)
    world.tasks.log.delete_before(Partition("t", 1), 50)
    failed = world.run(ranged(0, 100, 0), ranged(10, 100, 1))
    assert isinstance(failed, TaskFailed)
    assert (failed.error_class, failed.partition) == ("OffsetOutOfRange", Partition("t", 1))


def test_where_a_log_was_cut_off_and_written_anew_is_told() -> None:
    """Promise 12."""
    world = TaskWorld(text)
    place = Partition("t", 0)
    world.tasks.send(*numbers(100))
    world.tasks.log.truncate(place, 40)
    world.tasks.send(*numbers(100))
    failed = world.run(TaskRange(place, Position(60, 0), 90))
    assert isinstance(failed, TaskFailed)
    assert (failed.partition, failed.error_class) == (place, "OffsetOutOfRange")
    assert failed.diverged_at == 40


def test_corrupt_record_fails_the_task_only_within_the_range() -> None:
    world = TaskWorld(text)
    world.tasks.send(*numbers(100))
    world.tasks.log.corrupt(Partition("t", 0), 60)
    assert rows_in(world.done(ranged(0, 60)).staged["rows"]) == texts(60)
    failed = world.run(ranged(60, 100))
    assert isinstance(failed, TaskFailed)
    assert (failed.error_class, failed.partition) == ("CorruptRecord", Partition("t", 0))


class _Life(Bolt):
    """Notes its life."""

    def __init__(self, *, opens: bool = True) -> None:
        self.opens = opens
        self.told: list[str] = []
        self.partitions: list[tuple[str, int]] = []

    def open(self) -> None:
        self.told.append("open")
        if not self.opens:
            raise ConnectionError("no such host")

    def process(self, record: Record) -> str:
        assert (record.topic, record.partition) in self.partitions
        return text(record)

    def partition_assigned(self, topic: str, partition: int) -> None:
        self.partitions.append((topic, partition))

    def partition_revoked(self, topic: str, partition: int) -> None:
        self.partitions.remove((topic, partition))

    def close(self) -> None:
        assert not self.partitions
        self.told.append("close")


def test_bolts_are_opened_and_closed_with_every_task() -> None:
    life = _Life()
    world = TaskWorld(life)
    world.tasks.send(*numbers(20))
    world.done(ranged(0, 10))
    world.done(ranged(10, 20))
    assert life.told == ["open", "close"] * 2
    assert world.letters.letters == []
    world.tasks.log.delete_before(Partition("t", 0), 15)
    assert isinstance(world.run(ranged(10, 20)), TaskFailed)
    assert life.told == ["open", "close"] * 3


def test_a_bolt_that_does_not_open_fails_the_task_by_name() -> None:
    world = TaskWorld(_Life(opens=False))
    world.tasks.send(b"x")
    failed = world.run(ranged(0, 1))
    assert isinstance(failed, TaskFailed)
    assert failed.error_class == "ConnectionError"
    assert "no such host" in failed.error
    assert "bolt '_Life'" in failed.error
    assert failed.partition is None


def test_a_sink_without_a_stager_is_said() -> None:
    world = TaskWorld(text)
    world.stagers = {}
    world.tasks.send(b"x")
    failed = world.run(ranged(0, 1))
    assert isinstance(failed, TaskFailed)
    assert "'rows'" in failed.error
