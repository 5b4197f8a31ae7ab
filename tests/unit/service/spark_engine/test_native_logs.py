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
from partition.transaction import Resumed, Transactions
from service.account import Tally
from service.spark_engine.native import native_run
from service.spark_engine.native_logs import LeaderChanged, NativeLogs
from service.spark_engine.task import (
    RangeRead,
    Task,
    TaskDone,
    TaskFailed,
    TaskRange,
    decode,
    encode,
)
from tests.worlds.frames import Driver
from tests.worlds.silent import SilentCatalogue, SilentFetcher
from tests.worlds.tasking import SETTINGS, KeepingStager
from topology.transactional import Staged
from transactions.policy import TransactionPolicy
from transactions.range_line import RangeLine

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
        self.reads = (RangeRead(ONE, 5, "0" * 32, None),)
        self.deadlines: list[float | None] = []

    def run(
        self, job: Callable[[Any], Any], *, group: str, deadline_seconds: float | None = None
    ) -> Any:
        del job, group
        self.deadlines.append(deadline_seconds)
        self.meanwhile()
        return TaskDone(self.reads, {"rows": (self.staged,)}, Tally(), 0)


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

    def range_of(self, line: RangeLine, txid: int) -> TaskRange:
        covers = line.transaction_of(txid).range
        return TaskRange(ONE, line.position_of(txid), covers.end, leader_epoch=covers.leader_epoch)

    def line(self) -> RangeLine:
        resumed = Resumed(self.range().position, Transactions("transactional"))
        return RangeLine(ONE, resumed, TransactionPolicy(max_active=3))

    def seal(self, line: RangeLine, txid: int) -> None:
        """Run an open range, and seal it."""
        done = self.run(self.range_of(line, txid))
        assert isinstance(done, TaskDone), done
        (read,) = done.ranges
        attempt = line.transaction_of(txid).attempt
        line.stored(line.to_store())
        assert line.read(txid, attempt, read.count, read.digest, read.leader_epoch)

    def run(self, each: TaskRange, meanwhile: Callable[[], object] = lambda: None) -> Any:
        topology = Topology("t", reliability="exactly-once")
        topology.dead_letters.into(MemoryDeadLetters())
        topology.source("t").spark(lambda frame: frame).into(MemorySink[Any](), name="rows")
        self.spark.meanwhile = meanwhile
        logs = NativeLogs(lambda: self.catalogue, self.fetcher, self.clock)
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
    done = world.run(each)
    assert [read.leader_epoch for read in done.ranges] == [None], "no record is a later leader's"
    assert len(world.fetchers) == 2, "for its place, and for its end"
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
    with pytest.raises(KafkaUnavailable, match=r"whether t\[0\] was cut off"):
        world.run(each)
    assert world.now >= 30.0
    assert len(discarded) == 1


@pytest.mark.parametrize("when", ["planned", "read"])
def test_a_log_that_was_cut_off_within_a_range_is_read_on_behind_it(when: str) -> None:
    """Promise 12: the next range is asked for in the epoch of the records before it."""
    world = World()
    line = world.line()
    first = line.begin(10, 0).txid
    if when == "read":
        with pytest.raises(LeaderChanged):
            world.run(world.range_of(line, first), lambda: world.cut_off(7))
        line.stored(line.to_store())
        line.fail(first)
    else:
        world.cut_off(7)
    world.seal(line, first)
    second = line.begin(15, 1).txid
    assert line.position_of(second).leader_epoch == 1
    world.seal(line, second)
    world.log.elect(ONE)
    third = line.begin(20, 1).txid
    world.seal(line, third)
    assert [each.range.leader_epoch for each in line.to_store().open] == [1, 1, 1]


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_sealed_range_differs_if_a_later_leader_wrote_records_of_it(is_cut: bool) -> None:
    """Promise 14: also where offsets and lengths are the same, and only there."""
    world = World()
    line = world.line()
    txid = line.begin(10, 0).txid
    world.seal(line, txid)
    line.stored(line.to_store())
    line.fail(txid)
    if is_cut:
        world.cut_off(7)
    else:
        world.log.elect(ONE)
        world.log.append(ONE, b"behind it")
    world.seal(line, txid)
    assert (line.differs() is not None) is is_cut


def test_a_range_that_knows_no_leader_is_of_none_later_than_the_present_one() -> None:
    world = World()
    world.cut_off(7)
    (read,) = world.run(world.range(epoch=None)).ranges
    assert read.leader_epoch == 1
    assert world.fetchers == []
