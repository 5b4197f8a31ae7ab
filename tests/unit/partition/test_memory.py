"""What the log in memory can be made to do; that it reads as Kafka does is in tests/contract."""

from partition.errors import CorruptRecord
from partition.interfaces import Fetched
from partition.memory.ports import MemoryFetcher
from partition.records import Partition, Position
from tests.support.faulty_kafka import FaultyLog

A = Partition("t", 0)


def filled(count: int) -> FaultyLog:
    log = FaultyLog({"t": 1})
    for number in range(count):
        log.append(A, b"%d" % number)
    return log


def reader(log: FaultyLog, position: Position) -> MemoryFetcher:
    fetcher = MemoryFetcher(log)
    fetcher.open()
    fetcher.add({A: position})
    return fetcher


def test_a_corrupt_record_is_told_until_the_position_is_past_it() -> None:
    log = filled(5)
    log.corrupt(A, 2)
    fetcher = reader(log, Position(0))
    fetched = fetcher.fetch(10, 0)
    assert fetched.chunks[0].offsets.tolist() == [0, 1]
    assert isinstance(fetched.failures[A], CorruptRecord)
    assert fetcher.fetch(10, 0) == Fetched()
    fetcher.remove([A])
    fetcher.add({A: Position(3)})
    assert fetcher.fetch(10, 0).chunks[0].offsets.tolist() == [3, 4]


def test_mirrored_positions_can_be_looked_at() -> None:
    log = filled(1)
    reader(log, Position(0)).mirror({A: Position(1, 0)})
    assert log.mirrored == {A: Position(1, 0)}
