"""Exactly once, in memory: what is committed in which transaction, and what comes twice."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Record, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import TopologyTest
from tests.support.faulty_store import FaultyStore
from tests.support.patience import Limit
from tests.support.pipeline import PATIENCE_SECONDS, PLACE, RETRY_SECONDS, Door, Works
from topology.errors import SinkBusy
from topology.sink import Batch, Committed, Fence, Staged


@bolt
def text(record: Record) -> str:
    return (record.value or b"").decode()


class Noting(MemorySink[Any]):
    """Notes the shares of each commit; while `fails` is above 0, a commit fails before or after."""

    def __init__(self, name: str = "noting") -> None:
        super().__init__(name)
        self.shares: list[tuple[str, int, int]] = []
        self.fails_before = 0
        self.fails_after = 0
        self.rejects: set[str] = set()

    def stage(self, group: Batch) -> Staged:
        staged = super().stage(group)
        rejected = {i: "unwanted" for i, row in enumerate(staged.parts[0]) if row in self.rejects}
        rows = [row for i, row in enumerate(staged.parts[0]) if i not in rejected]
        return Staged(group.shares, len(rows), (rows,), rejected)

    def commit(self, staged: Staged) -> None:
        if self.fails_before:
            self.fails_before -= 1
            raise OSError("not now")
        super().commit(staged)
        self.shares += [(s.line, s.txid, s.num_rows) for s in staged.shares]
        if self.fails_after:
            self.fails_after -= 1
            raise OSError("the reply was lost")


def committed(works: Works, line: str = "t[0]") -> Committed:
    found: list[Committed] = works.sink.committed([line])
    return found[0]


def transactions(works: Works) -> Any:
    store = FaultyStore(works.nodes)
    store.open()
    stored = store.load(PLACE)
    assert stored is not None
    return stored.transactions


def test_offset_follows_the_committed_transaction() -> None:
    """Promise 14."""
    sink = Noting()
    with Works(text, sinks=[sink], exactly_once="transactional") as works:
        works.send(b"a", b"b", b"c")
        works.finish()
        assert sink.rows == ["a", "b", "c"]
        works.until(lambda: transactions(works).committed == committed(works).txid)
        assert transactions(works).open == ()
        assert works.pipeline.counters.written == 3
        assert [txid for _line, txid, _rows in sink.shares] == list(range(1, len(sink.shares) + 1))


def test_nothing_is_emitted_before_its_transaction_is_stored() -> None:
    """Storm 42."""
    seen: list[Any] = []

    @bolt
    def looks(record: Record) -> str:
        assert record.offset is not None
        covering = [
            each.txid
            for each in transactions(works).open
            if each.range.first <= record.offset < each.range.end
        ]
        seen.append(len(covering))
        return "x"

    with Works(
        looks, sinks=[Noting()], exactly_once="transactional", fetch_records=7, chunk_records=3
    ) as works:
        works.send(*[b"x"] * 50)
        works.finish()
    assert seen == [1] * 50


@pytest.mark.parametrize("when", ["fails_before", "fails_after"])
def test_commit_of_unknown_outcome_lands_once(when: str) -> None:
    sink = Noting()
    setattr(sink, when, 1)
    with Works(text, sinks=[sink], exactly_once="transactional") as works:
        works.send(b"a", b"b")
        works.finish()
        assert sorted(sink.rows) == ["a", "b"]


def test_rows_of_a_failed_attempt_are_dropped() -> None:
    """One branch has its rows ready when the other fails: they come once, of the retry."""
    tries: list[str] = []

    @bolt
    async def fails_once(value: str) -> str:
        tries.append(value)
        if len(tries) == 1:
            raise OSError("not yet")
        return value + "!"

    left, right = Noting("left"), Noting("right")
    topology = Topology("branches", reliability="exactly-once")
    texts = topology.source("t").then(text)
    texts.into(left)
    texts.then(fails_once).into(right)
    topology.dead_letters.into(MemoryDeadLetters())
    with TopologyTest(topology) as test:
        test.send(b"a")
        assert test.rows == []
        test.advance(60)
        assert test.rows_of("left") == ["a"]
        assert test.rows_of("right") == ["a!"]


def test_retry_holds_its_transaction_and_later_ones() -> None:
    tries: list[str] = []

    @bolt
    def fails_once(record: Record) -> str:
        value = (record.value or b"").decode()
        if value == "bad" and not tries:
            tries.append(value)
            raise OSError("not yet")
        return value

    with Works(fails_once, sinks=[Noting()], exactly_once="transactional") as works:
        works.send(b"a", b"bad")
        works.turn(20)
        works.send(b"c")
        works.turn(20)
        assert works.sink.rows == []
        works.advance(RETRY_SECONDS * 2)
        works.finish()
        assert sorted(works.sink.rows) == ["a", "bad", "c"]


def test_rejected_row_has_its_dead_letter_before_the_commit() -> None:
    sink = Noting()
    sink.rejects = {"bad"}
    with Works(text, sinks=[sink], exactly_once="transactional") as works:
        works.letters_sink.holding = True
        works.send(b"a", b"bad", b"c")
        works.until(lambda: len(works.letters_sink.letters) == 1)
        works.turn(20)
        assert sink.rows == []
        works.letters_sink.holding = False
        works.finish()
        assert sink.rows == ["a", "c"]
        assert len(works.letters_sink.letters) == 1
        counters = works.pipeline.counters
        assert (counters.written, counters.dead_lettered, counters.filtered) == (2, 1, 0)


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_transaction_open_at_a_crash_is_done_once(kind: Any) -> None:
    """The first life ends with a record that its async bolt never gave back."""
    door = Door()
    sink = Noting()
    with Works(door.as_bolt(), sinks=[sink], exactly_once=kind, workers=4) as first:
        first.send(*[str(i).encode() for i in range(4)])
        first.until(lambda: door.answered == 3)
        assert transactions(first).open
        assert sink.rows == []
        door.open()
    with Works(text, sinks=[sink], exactly_once=kind, nodes=first.nodes, log=first.log) as second:
        second.finish()
        assert sorted(sink.rows) == ["0", "1", "2", "3"]


def test_sink_gets_no_transaction_twice() -> None:
    """One sink had committed when the process ended, the other had not."""
    left, right = Noting("left"), Noting("right")
    right.fails_before = 1_000_000
    with Works(text, sinks=[left, right], exactly_once="opaque") as first:
        first.send(b"a", b"b")
        first.until(lambda: len(left.rows) == 2)
    right.fails_before = 0
    with Works(
        text, sinks=[left, right], exactly_once="opaque", nodes=first.nodes, log=first.log
    ) as second:
        second.send(b"c")
        second.finish()
        assert left.rows == right.rows == ["a", "b", "c"]
        assert [outlet.rows_pending for outlet in second.pipeline.outlets] == [0, 0]


def test_fenced_partition_leaves_its_group() -> None:
    """Promise 9. The letter of a lost line's record is nobody's business here any more."""
    sink = Noting()
    sink.rejects = {"bad"}
    with Works(text, sinks=[sink], exactly_once="transactional", partitions=2) as works:
        works.letters_sink.holding = True
        works.send(b"a", b"bad", partition=0)
        works.send(b"b", partition=1)
        works.until(lambda: len(works.letters_sink.letters) == 1)
        sink.fence([Fence("t[0]", 99)])
        works.letters_sink.holding = False
        works.until(lambda: "b" in sink.rows)
        works.send(b"c", partition=1)
        works.until(lambda: sink.rows == ["b", "c"])
        assert list(works.reader.assignment.halted) == [PLACE]
        assert committed(works) == Committed("t[0]", 99, 0)
        works.until(lambda: works.pipeline.counters.written == 2)


def test_full_batch_closes_a_transaction() -> None:
    sink = Noting()
    with Works(
        text,
        sinks=[sink],
        exactly_once="transactional",
        batch_rows=10,
        fetch_records=4,
        transaction_records=1000,
    ) as works:
        works.send(*[str(number).encode() for number in range(100)])
        end = Limit(PATIENCE_SECONDS)
        while len(sink.rows) < 80:  # without a flush, which would end one at each turn
            assert not end.passed
            works.pipeline.step()
        assert all(rows <= 40 for _line, _txid, rows in sink.shares)
        works.finish()
        assert len(sink.rows) == 100


def test_passing_trouble_does_not_halt_a_replay() -> None:
    sink = Noting()
    sink.fails_before = 1_000_000
    with Works(text, sinks=[sink], exactly_once="transactional") as first:
        first.send(*[str(number).encode() for number in range(10)])
        first.turn(20)
        assert transactions(first).open
    first.log.corrupt(PLACE, 5)
    sink.fails_before = 0
    with Works(
        text, sinks=[sink], exactly_once="transactional", nodes=first.nodes, log=first.log
    ) as second:
        second.until(lambda: second.reader.assignment[PLACE].in_vain[0] == 5)
        first.log.mend(PLACE)
        second.until(lambda: second.advance(1) or len(sink.rows) == 10)
        assert not second.reader.assignment.halted


def test_slow_sink_holds_back_a_fan_out() -> None:
    """Promise 10."""

    @bolt
    def spread(record: Record) -> Iterator[int]:
        yield from range(100)

    class Stuck(Noting):
        def commit(self, staged: Staged) -> None:
            raise SinkBusy(0.05)

    with Works(
        spread,
        sinks=[Stuck()],
        exactly_once="transactional",
        batch_rows=1_000,
        fetch_records=10,
        chunk_records=10,
        transaction_records=100,
        max_active=50,
    ) as works:
        works.send(*[b"x"] * 2_000)
        works.turn(60)
        assert 3_000 < works.pipeline.outlets[0].rows_pending < 3_000 + 2 * 100 * 100
        assert works.ledger.emitted_to < 300
