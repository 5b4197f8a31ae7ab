from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from sinks import ForeachSink, MemoryDeadLetters, TransactionalForeachSink
from topology.bolt import bolt
from topology.errors import InvalidTopology, RowsRejected, SinkFailed, SinkFenced
from topology.sink import Batch, Sink
from topology.topology import Topology
from topology.transactional import Committed, Fence, Group, Kind, Share

LINE = "orders[0]"


class Unfenced:
    """A target that keeps its promises, and cannot set an epoch by itself."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.lines: dict[str, tuple[int, int]] = {}
        self.between: list[Share] = []  # someone else's, written just before

    def last(self, line: str) -> tuple[int, int]:
        return self.lines.get(line, (0, 0))

    def write(self, rows: Sequence[Any], shares: Sequence[Share]) -> None:
        while self.between:
            other = self.between.pop()
            self.lines[other.line] = (other.epoch, other.txid)
        for share in shares:
            epoch, txid = self.last(share.line)
            if epoch > share.epoch or txid >= share.txid:
                raise ValueError("not moved")
        self.lines |= {share.line: (share.epoch, share.txid) for share in shares}
        self.rows += rows


class Fenced(Unfenced):
    def fence(self, line: str, epoch: int) -> None:
        found, txid = self.last(line)
        self.lines[line] = (max(found, epoch), txid)


def share(txid: int, epoch: int = 1) -> Share:
    return Share(LINE, epoch, txid, 1, txid, txid + 1, "", 1)


def group(share: Share, *rows: Any) -> Group:
    return Group(1, (share,), [list(rows)], len(rows))


def test_a_function_gets_the_rows_of_a_batch() -> None:
    got: list[list[Any]] = []
    sink = ForeachSink(got.append, name="mine")
    columns = pa.RecordBatch.from_pylist([{"n": 2}])
    sink.write(Batch(1, [[{"n": 1}], columns], 2))
    assert got == [[{"n": 1}, {"n": 2}]]
    assert sink.name == "mine"


def test_what_a_function_raises_is_what_the_sink_raises() -> None:
    def write(rows: list[Any]) -> None:
        raise RowsRejected({0: "no"})

    with pytest.raises(RowsRejected):
        ForeachSink(write).write(Batch(1, [[1]], 1))
    assert ForeachSink(write).name == "write"


def validated(sink: Sink[Any], kind: Kind) -> None:
    @bolt
    def number(record: Any) -> dict[str, int]:
        return {"n": 1}

    topology = Topology("t", reliability="exactly-once", transactions=kind)
    topology.source("orders").then(number).into(sink)
    topology.dead_letters.into(MemoryDeadLetters())
    topology.validate()


def test_a_function_is_refused_under_exactly_once() -> None:
    with pytest.raises(InvalidTopology, match=r"\(ForeachSink\) gives at-least-once.*Transactiona"):
        validated(ForeachSink(print), "transactional")


def test_a_target_that_fences_keeps_both_kinds() -> None:
    validated(TransactionalForeachSink(Fenced()), "transactional")
    validated(TransactionalForeachSink(Fenced()), "opaque")


def test_a_target_that_does_not_fence_keeps_transactional_ones_only() -> None:
    validated(TransactionalForeachSink(Unfenced()), "transactional")
    with pytest.raises(InvalidTopology, match=r"gives exactly-once \(transactional\)"):
        validated(TransactionalForeachSink(Unfenced()), "opaque")


def test_without_a_fence_the_first_of_two_owners_writes_a_transaction() -> None:
    """Both have the same rows under a txid, so it does not matter which."""
    target = Unfenced()
    former, successor = TransactionalForeachSink(target), TransactionalForeachSink(target)
    assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 0)]
    former.commit(former.stage(group(share(1), "row 1")))
    successor.commit(successor.stage(group(share(1, epoch=2), "row 1")))
    successor.commit(successor.stage(group(share(2, epoch=2), "row 2")))
    with pytest.raises(SinkFenced):
        former.commit(former.stage(group(share(2), "row 2")))
    assert target.rows == ["row 1", "row 2"]
    assert target.lines == {LINE: (2, 2)}


def test_a_commit_that_another_one_forestalls_is_done() -> None:
    target = Fenced()
    sink = TransactionalForeachSink(target)
    target.between = [share(1)]
    sink.commit(sink.stage(group(share(1), "row")))
    assert target.rows == []
    target.between = [share(2, epoch=3)]
    with pytest.raises(SinkFenced):
        sink.commit(sink.stage(group(share(2), "row")))


def test_what_a_target_raises_with_nothing_written_is_passed_on() -> None:
    class Broken(Fenced):
        def write(self, rows: Sequence[Any], shares: Sequence[Share]) -> None:
            raise OSError("away")

    sink = TransactionalForeachSink(Broken())
    with pytest.raises(OSError, match="away"):
        sink.commit(sink.stage(group(share(1), "row")))


def test_rows_without_transactions_are_written_too() -> None:
    target = Unfenced()
    sink = TransactionalForeachSink(target, schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(RowsRejected) as caught:
        sink.write(Batch(1, [[{"n": 1}, {"n": "2"}]], 2))
    assert list(caught.value.reasons) == [1]
    assert target.rows == [{"n": 1}]
    assert sink.name == "Unfenced"


class Picky(Fenced):
    """Takes no row of which "n" is negative, as a database with such a constraint."""

    def refused(self, rows: Sequence[Any]) -> dict[int, str]:
        return {place: "n is negative" for place, row in enumerate(rows) if row["n"] < 0}

    def write(self, rows: Sequence[Any], shares: Sequence[Share]) -> None:
        if self.refused(rows):
            raise ValueError("it was told so")
        super().write(rows, shares)


def test_rows_that_only_the_store_refuses_are_rejected_and_the_others_written() -> None:
    target = Picky()
    sink = TransactionalForeachSink(target, schema=pa.schema([("n", pa.int64())]))
    columns = pa.RecordBatch.from_pylist([{"n": -3}, {"n": 4}])
    pieces: list[Any] = [[{"n": "x"}, {"n": 1}, {"n": -2}, {"n": 2}], columns]
    staged = sink.stage(Group(1, (share(1),), pieces, 6))
    assert sorted(staged.rejected) == [0, 2, 4]
    assert [staged.rejected[place] for place in (2, 4)] == ["n is negative"] * 2
    assert staged.num_rows == 3
    sink.commit(staged)
    assert target.rows == [{"n": 1}, {"n": 2}, {"n": 4}]
    with pytest.raises(RowsRejected) as caught:
        sink.write(Batch(1, pieces, 6))
    assert caught.value.reasons == dict(staged.rejected)
    assert target.rows == [{"n": 1}, {"n": 2}, {"n": 4}] * 2


def test_a_target_that_refuses_a_row_that_it_was_not_shown_ends_the_run() -> None:
    class Confused(Fenced):
        def refused(self, rows: Sequence[Any]) -> dict[int, str]:
            return {len(rows): "no"}

    sink = TransactionalForeachSink(Confused())
    with pytest.raises(SinkFailed, match="'Confused' rejected row 1 of a batch of 1"):
        sink.stage(group(share(1), "row"))


def test_a_write_that_rejects_rows_ends_the_run_for_it_has_not_written_the_others() -> None:

    class Raising(Fenced):
        def write(self, rows: Sequence[Any], shares: Sequence[Share]) -> None:
            raise RowsRejected({0: "no"})

    sink = TransactionalForeachSink(Raising())
    staged = sink.stage(group(share(1), "row"))
    for write in (lambda: sink.write(Batch(1, [["row"]], 1)), lambda: sink.commit(staged)):
        with pytest.raises(SinkFailed, match=r"'Raising' rejected rows.*refused\(rows\)"):
            write()
