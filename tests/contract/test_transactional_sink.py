"""What every sink promises that makes rows durable exactly once, asked of each of them."""

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pytest

from tests.support.batches import share
from tests.support.houses import INTEGRATION, NIGHTLY, House, build
from tests.support.patience import seconds
from tests.support.remote_staging import copied, halves, staged_apart
from topology.errors import SinkFailed, SinkFenced
from topology.schema import schema_of
from topology.sink import Batch, Committed, Fence, Piece, Share, Sink, Staged


class Order(TypedDict):
    number: int
    customer: str | None


SCHEMA = schema_of(Order)
FIRST, SECOND, THIRD = "orders[0]", "orders[1]", "refunds[0]"


def order(number: int) -> dict[str, Any]:
    return {"number": number, "customer": f"c{number}"}


KINDS = [
    "memory",
    "own",
    "delta",
    "delta-apart",
    pytest.param("spark_delta", marks=NIGHTLY),
    "spark_delta-fake",
    "delta-keyed",
    "iceberg",
    pytest.param("iceberg-postgres", marks=INTEGRATION),
    pytest.param("iceberg-rest", marks=INTEGRATION),
    pytest.param("postgres", marks=INTEGRATION),
    pytest.param("postgres-keyed", marks=INTEGRATION),
    pytest.param("topic", marks=INTEGRATION),
]
stage_apart = pytest.mark.parametrize(
    "house",
    ["delta", "spark_delta-fake", pytest.param("spark_delta", marks=NIGHTLY), "iceberg"],
    indirect=True,
)


@pytest.fixture(params=KINDS)
def house(request):
    return build(request.param, SCHEMA, request, exactly_once=True)


@pytest.fixture
def opened(house):
    sinks: list[Sink[Any]] = []

    def open_sink() -> Sink[Any]:
        sinks.append(house.sink())
        sinks[-1].open(house.context)
        return sinks[-1]

    yield open_sink
    for sink in sinks:
        sink.close()
        sink.close()


@pytest.fixture
def sink(opened):
    """A sink in which the owner of all three lines has epoch 1."""
    sink = opened()
    sink.fence([Fence(line, 1) for line in (FIRST, SECOND, THIRD)])
    return sink


def group(*shares: tuple[Share, Sequence[Any]], number: int = 1) -> Batch:
    given = [replace(each, num_rows=len(rows)) for each, rows in shares]
    pieces: list[Piece] = [list(rows) for _, rows in shares if rows]
    return Batch(number, pieces, sum(len(rows) for _, rows in shares), tuple(given))


def put(sink: Sink[Any], *shares: tuple[Share, Sequence[Any]]) -> Staged:
    staged = sink.stage(group(*shares))
    sink.commit(staged)
    return staged


def state(sink: Sink[Any], *lines: str) -> list[tuple[int, int]]:
    found = sink.committed(lines)
    assert tuple(each.line for each in found) == lines
    return [(each.epoch, each.txid) for each in found]


def test_rows_and_columns_are_durable_with_their_txid(house, sink):
    """Promise 3. Storm 45: idempotent by txid, so it may be repeated when its reply was lost."""
    columns = pa.RecordBatch.from_pylist([order(2), order(3)], schema=SCHEMA)
    pieces: list[Piece] = [[order(1)], columns, [], [order(4)]]
    staged = sink.stage(Batch(1, pieces, 4, (share(num_rows=3), share(line=SECOND))))
    for _ in range(2):
        sink.commit(staged)
        found = sorted(house.rows(), key=lambda row: row["number"])
        assert found == [order(number) for number in range(1, 5)]
        assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]
    put(sink, (share(txid=2), [order(5)]), (share(line=THIRD), [order(6)]))
    assert house.numbers() == [1, 2, 3, 4, 5, 6]
    assert state(sink, FIRST, SECOND, THIRD) == [(1, 2), (1, 1), (1, 1)]


@pytest.mark.parametrize("rows", [[], [{}, {}]], ids=["none", "rejected"])
def test_group_without_rows_that_fit_raises_the_txids(house, sink, rows):
    """Promise 14: every txid is committed, also where all its records were filtered."""
    assert set(put(sink, (share(), rows), (share(line=SECOND), [])).rejected) == set(
        range(len(rows))
    )
    assert house.rows() == []
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]
    put(sink, (share(txid=2), []), (share(2, line=SECOND), [order(1)]))
    assert house.numbers() == [1]
    assert state(sink, FIRST, SECOND) == [(1, 2), (1, 2)]


def test_what_is_discarded_leaves_nothing_and_may_be_staged_again(house, sink):
    staged = sink.stage(group((share(), [order(1)])))
    assert (house.rows(), state(sink, FIRST)) == ([], [(1, 0)]), "it is only staged"
    sink.discard(staged)
    assert house.rows() == []
    put(sink, (share(), [order(1)]))
    assert house.numbers() == [1]


def test_the_same_transaction_staged_again_is_done_once(house, opened, sink):
    """Storm 45: it crashed between the sink's commit and writing down that it was done."""
    put(sink, (share(), [order(1)]), (share(line=SECOND), [order(2)]))
    again = opened()
    put(again, (share(attempt=2), [order(1)]), (share(line=SECOND, attempt=2), [order(2)]))
    assert house.numbers() == [1, 2]


def test_a_fence_tells_what_is_committed_in_its_order(sink):
    put(sink, (share(), [order(1)]))
    put(sink, (share(txid=2), [order(2)]), (share(line=SECOND), []))
    for _ in range(2):  # repeating it is harmless
        assert sink.fence([Fence(THIRD, 4), Fence(SECOND, 2), Fence(FIRST, 3)]) == [
            Committed(THIRD, 4, 0),
            Committed(SECOND, 2, 1),
            Committed(FIRST, 3, 2),
        ]
    nobodys = "refunds[7]"
    assert state(sink, FIRST, SECOND, THIRD, nobodys) == [(3, 2), (2, 1), (4, 0), (0, 0)]
    assert sink.committed([]) == []
    put(sink, (share(txid=3, epoch=3), [order(3)]))
    assert state(sink, FIRST) == [(3, 3)]


def test_rows_that_do_not_fit_are_named_and_the_rest_is_one_transaction(house, sink):
    """Promise 13: what would lose something is a dead letter, not a row that is nearly right."""
    bad: list[Any] = [2.5, True, "2", None]
    rows = [order(1), *(order(2) | {"number": number} for number in bad), order(3)]
    staged = put(sink, (share(), rows), (share(line=SECOND), [order(4), {}]))
    assert set(staged.rejected) == {1, 2, 3, 4, 7}
    assert house.numbers() == [1, 3, 4]
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]


def test_a_lower_epoch_is_refused_after_a_fence_and_changes_nothing(house, opened, sink):
    """Promise 9: a zombie cannot finish a transaction once its successor has started."""
    zombies = sink.stage(group((share(line=SECOND), [order(2)]), (share(), [order(1)])))
    successor = opened()
    successor.fence([Fence(FIRST, 2)])
    for step in (lambda: sink.commit(zombies), lambda: sink.fence([Fence(FIRST, 1)])) * 2:
        with pytest.raises(SinkFenced) as caught:
            step()
        assert (caught.value.line, caught.value.epoch, caught.value.found) == (FIRST, 1, 2)
    assert house.rows() == []
    assert state(sink, FIRST, SECOND) == [(2, 0), (1, 0)]
    put(successor, (share(epoch=2, attempt=2), [order(1)]))
    with pytest.raises(SinkFenced):
        put(sink, (share(txid=2), [order(2)]))  # also what it stages after the fence
    put(sink, (share(line=SECOND), [order(2)]))
    assert house.numbers() == [1, 2]
    assert successor.fence([Fence(FIRST, 2)]) == [Committed(FIRST, 2, 1)]


def test_nothing_of_a_zombie_lands_once_its_successor_has_fenced_it(house, opened, sink):
    """Promise 9: what the fence told is all there is of the zombie, whenever it commits."""
    ended: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

    def commit_on_and_on() -> None:
        try:
            for txid in range(1, 100_000):
                put(sink, (share(txid=txid), [order(txid)]))
                ended.put(txid)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            ended.put(error)

    zombie = threading.Thread(target=commit_on_and_on)
    zombie.start()
    assert [ended.get(timeout=seconds(60)) for _ in range(3)] == [1, 2, 3]
    successor = opened()
    (told,) = successor.fence([Fence(FIRST, 2)])
    zombie.join(seconds(60))
    ends = [ended.get_nowait() for _ in range(ended.qsize())]
    assert isinstance(ends[-1], SinkFenced), ends[-1]
    assert house.numbers() == list(range(1, told.txid + 1))
    put(successor, (share(txid=told.txid + 1, epoch=2), [order(told.txid + 1)]))
    assert house.numbers() == list(range(1, told.txid + 2))


def test_only_some_shares_of_a_group_are_there(house, sink):
    put(sink, (share(), [order(1)]))
    with pytest.raises(SinkFailed):
        put(sink, (share(), [order(1)]), (share(line=SECOND), [order(2)]))
    assert house.numbers() == [1]
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 0)]


def test_one_is_staged_while_another_waits_for_its_commit(house, sink):
    staged = [
        sink.stage(group((share(txid=txid), [order(txid)]), number=txid)) for txid in (1, 2, 3)
    ]
    for each in staged:
        sink.commit(each)
    assert house.numbers() == [1, 2, 3]
    assert state(sink, FIRST) == [(1, 3)]


def test_what_is_committed_is_known_to_a_new_sink_on_the_same_place(house, opened, sink):
    """Storm 45: state and txid outlive the process together."""
    put(sink, (share(), [order(1)]), (share(line=SECOND), []))
    sink.fence([Fence(FIRST, 5)])
    sink.close()
    again = opened()
    assert state(again, FIRST, SECOND, THIRD) == [(5, 1), (1, 1), (1, 0)]
    with pytest.raises(SinkFenced):
        put(again, (share(txid=2, epoch=4), [order(2)]))
    again.close()
    again.open(house.context)
    put(again, (share(epoch=5), [order(1)]))
    put(again, (share(txid=2, epoch=5), [order(2)]))
    assert house.numbers() == [1, 2]


def test_rows_that_belong_to_no_transaction_may_be_written_beside(house, sink):
    put(sink, (share(), [order(1)]))
    sink.write(Batch(1, [[order(2)]], 1))
    put(sink, (share(txid=2), [order(3)]))
    assert house.numbers() == [1, 2, 3]
    assert state(sink, FIRST) == [(1, 2)]


def test_lines_whose_names_differ_little_are_apart(house, opened):
    sink = opened()
    lines = [f"{topic}[{number}]" for topic, number in product(("a", "A", "a.b", "a_b"), (1, 11))]
    sink.fence([Fence(line, place) for place, line in enumerate(lines, start=1)])
    put(sink, *((share(line=line, epoch=e), [order(e)]) for e, line in enumerate(lines, start=1)))
    assert state(sink, *lines) == [(epoch, 1) for epoch in range(1, len(lines) + 1)]
    assert house.numbers() == list(range(1, len(lines) + 1))


@stage_apart
def test_what_other_processes_staged_is_committed_as_one_group(house, sink):
    """Promise 14: a group has one commit, however many processes made its files."""
    shares = (share(num_rows=3), share(line=SECOND, num_rows=3))
    rows: list[Piece] = [
        [order(1), order(2), {}, order(4)],
        [order(5) | {"number": "five"}, order(6)],
    ]
    staged = sink.joined(shares, staged_apart(sink.stager(), *halves(Batch(1, rows, 6, shares))))
    assert (staged.shares, staged.num_rows, set(staged.rejected)) == (shares, 4, {2, 4})
    assert house.rows() == []
    sink.commit(staged)
    sink.commit(copied(staged))
    assert house.numbers() == [1, 2, 4, 6]
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]
    sink.commit(sink.joined((share(2, num_rows=0),), []))  # no process had any row of it
    assert house.numbers() == [1, 2, 4, 6]
    assert state(sink, FIRST, SECOND) == [(1, 2), (1, 1)]


@stage_apart
def test_what_other_processes_staged_elsewhere_is_not_committed(house, sink):
    """Promise 14: the table would name files that this process cannot see."""
    whole = group((share(), [order(1), order(2)]))
    before = files(house)
    staged = staged_apart(sink.stager(), *halves(whole))
    file = min(files(house) - before)
    file.unlink()
    with pytest.raises(SinkFailed, match=f"{file.name}.*must share the folder of the table"):
        sink.joined(whole.shares, staged)


@stage_apart
def test_what_other_processes_staged_leaves_nothing_when_it_is_discarded(house, sink):
    whole = group((share(), [order(1), order(2)]))
    put(sink, (share(), [order(1), order(2)]))
    before = files(house)
    staged = staged_apart(sink.stager(), *halves(whole))
    assert len(files(house) - before) == 2
    sink.discard(sink.joined(whole.shares, staged))
    assert files(house) == before

    stager = sink.stager()
    for each in staged_apart(stager, *halves(whole)):
        stager.discard(each)
    assert files(house) == before


def files(house: House) -> set[Path]:
    return set(house.warehouse.rglob("*.parquet"))
