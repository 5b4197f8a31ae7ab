"""What Spark has read is compared with the logs, before it is sealed: a log may be another one."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace import Topology
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.chunk import Partition
from partition.errors import KafkaUnavailable
from partition.memory import MemoryLog
from partition.position import Position
from service.account import Tally
from service.spark_engine.native import native_run
from service.spark_engine.native_logs import LeaderChanged, NativeLogs
from service.spark_engine.task import Task, TaskDone, TaskFailed, TaskRange, decode, encode
from tests.worlds.frames import Driver
from tests.worlds.silent import SilentCatalogue, SilentFetcher
from tests.worlds.tasking import SETTINGS, KeepingStager
from topology.transactional import Staged

ONE = Partition("t", 0)


discarded: list[Staged] = []


class Discards(KeepingStager):
    """Also where it was sent and came back."""

    def discard(self, staged: Staged) -> None:
        discarded.append(staged)


@pytest.fixture(autouse=True)
def _none_discarded() -> None:
    discarded.clear()


class Reads(Driver):
    """A Spark whose job is done at once; what happens meanwhile is told."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.meanwhile = meanwhile
        self.staged = Staged((), 1, (["row"],))
        self.deadlines: list[float | None] = []

    def run(
        self, job: Callable[[Any], Any], *, group: str, deadline_seconds: float | None = None
    ) -> Any:
        del job, group
        self.deadlines.append(deadline_seconds)
        self.meanwhile()
        return TaskDone((), {"rows": (self.staged,)}, Tally(), 0)


class World:
    """A log of ten records, of which Spark reads some."""

    def __init__(self) -> None:
        self.log = MemoryLog({"t": 1})
        for number in range(10):
            self.log.append(ONE, b"%d" % number)
        self.catalogue = SilentCatalogue(self.log)
        self.catalogue.open()
        self.now = 0.0
        self.fetchers: list[SilentFetcher] = []
        self.silent: tuple[Partition, ...] = ()
        self.spark = Reads()
        self.stager = Discards()

    def range(self, first: int = 5, end: int = 10, epoch: int | None = 0) -> TaskRange:
        topic_id = self.log.topic("t").topic_id
        return TaskRange(ONE, Position(first, epoch, topic_id), end, leader_epoch=epoch)

    def run(self, each: TaskRange, meanwhile: Callable[[], object] = lambda: None) -> Any:
        topology = Topology("t", reliability="exactly-once")
        topology.dead_letters.into(MemoryDeadLetters())
        topology.source("t").spark(lambda frame: frame).into(MemorySink[Any](), name="rows")
        self.spark.meanwhile = meanwhile
        logs = NativeLogs(self.catalogue, self.fetcher, self.clock)
        task = Task(SETTINGS, 1, (each,), {"rows": self.stager})
        (done,) = native_run(self.spark, topology, logs)("ranges-1-1", [encode(task)], 60.0)
        return decode(done)

    def fetcher(self) -> SilentFetcher:
        self.fetchers.append(SilentFetcher(self.log, self.silent))
        return self.fetchers[-1]

    def clock(self) -> float:
        self.now += 10.0
        return self.now

    def cut_off(self, at: int, upto: int = 20) -> None:
        self.log.truncate(ONE, at)
        for number in range(at, upto):
            self.log.append(ONE, b"anew %d" % number)


def test_what_is_read_of_a_log_that_stays_as_it_is_is_used() -> None:
    world = World()
    assert isinstance(world.run(world.range()), TaskDone)
    assert (world.fetchers, discarded) == ([], [])
    assert world.spark.deadlines == [60.0]


@pytest.mark.parametrize("when", ["planned", "read"])
def test_a_topic_that_was_made_anew_is_said(when: str) -> None:
    """Promise 12: its offsets are there again, and are other records."""
    world = World()
    each = world.range()

    def anew() -> None:
        world.log.recreate_topic("t", 1)
        for number in range(10):
            world.log.append(ONE, b"other %d" % number)

    if when == "planned":
        anew()
    failed = world.run(each, anew if when == "read" else lambda: None)
    assert isinstance(failed, TaskFailed)
    assert (failed.partition, failed.error_class) == (ONE, "OffsetOutOfRange")
    assert "deleted and made anew" in failed.error


def test_nothing_is_read_while_the_leader_of_a_range_does_not_answer() -> None:
    """Promise 10: Spark would wait for it for minutes, and the others with it."""
    world = World()
    world.catalogue.silent = {ONE}
    with pytest.raises(KafkaUnavailable, match="its leader does not"):
        world.run(world.range())
    assert world.spark.deadlines == []


def test_a_topic_that_is_gone_is_said() -> None:
    """Promise 12."""
    world = World()
    failed = world.run(world.range(), lambda: world.log.delete_topic("t"))
    assert (failed.partition, failed.error_class) == (ONE, "TopicMissing")


def test_a_log_that_was_cut_off_below_a_range_and_written_anew_is_said() -> None:
    """Promise 12: its offsets are there again, and are other records."""
    world = World()
    each = world.range()
    world.cut_off(3)
    world.log.elect(ONE)
    failed = world.run(each)
    assert (failed.partition, failed.error_class, failed.diverged_at) == (
        ONE,
        "OffsetOutOfRange",
        3,
    )
    assert len(discarded) == 1
    assert world.fetchers[0].log_range(ONE) is None, "its client is closed"


def test_a_leader_that_only_changed_before_the_reading_is_no_trouble() -> None:
    world = World()
    each = world.range()
    world.log.elect(ONE)
    assert isinstance(world.run(each), TaskDone)
    assert len(world.fetchers) == 1
    each = world.range(10, 10, 0)  # nothing lies at its place yet
    assert isinstance(world.run(each), TaskDone)


def test_a_range_is_read_again_if_its_leader_changes_meanwhile() -> None:
    """Promise 12: the tasks of one range may have read two logs."""
    world = World()
    with pytest.raises(LeaderChanged, match="read again"):
        world.run(world.range(), lambda: world.cut_off(7))
    assert len(discarded) == 1


def test_a_log_that_ends_within_a_range_is_said() -> None:
    """Promise 12."""
    world = World()
    each = world.range()
    world.log.truncate(ONE, 8)
    failed = world.run(each)
    assert "its log ends at 8" in failed.error


def test_a_range_is_read_again_if_nobody_says_whether_its_log_was_cut_off() -> None:
    world = World()
    each = world.range()
    world.log.elect(ONE)
    world.silent = (ONE,)
    with pytest.raises(LeaderChanged):
        world.run(each)
    assert world.now >= 30.0
