"""One suite for every OffsetStore: the one in memory and the one in ZooKeeper.

What is of ZooKeeper and kazoo alone is in `test_zookeeper_store`.
"""

import json
import time
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from partition.errors import (
    Fenced,
    OffsetWouldMoveBack,
    OwnershipLost,
    StoreConflict,
    StoreCorrupt,
    StoreForeign,
    StoreMissing,
    StoreUnavailable,
)
from partition.interfaces import Claimed, Progress, StoredOffset
from partition.records import Partition, Position
from tests.support.patience import slack, until
from tests.support.zookeeper import (
    BOTH,
    SECONDS,
    STORM,
    A,
    B,
    MemoryNodesWorld,
    begin,
    claim,
    commit,
    commit_plans,
    node,
    opened,
    opened_apart,
    opened_transactions,
    plan,
)


@pytest.fixture(params=BOTH)
def world(request):
    yield from opened(request.param, request)


@pytest.fixture(params=BOTH)
def alone(request):
    """A world whose writes no other test adds to."""
    yield from opened(request.param, request, "quiet_zookeeper")


@pytest.fixture(params=BOTH)
def fragile(request):
    yield from opened_apart(request.param, request)


def stored(offset: int, epoch: int) -> StoredOffset:
    return StoredOffset(Position(offset), "shop-1", "shop-1", epoch)


def test_an_offset_that_was_never_stored_is_none(alone):
    store = alone.store()
    before = alone.writes()
    assert store.load(A) is None
    assert claim(store, A) == Claimed(None)
    assert alone.writes() - before == (0 if isinstance(alone, MemoryNodesWorld) else 2)


def test_a_first_offset_is_stored_once(world):
    """Promise 7: the first position is stored, and nobody stores another over it.

    Storm 4: it is there before the first commit. Storm 5: 0 is an offset.
    """
    first, second = world.store(), world.store()
    begin(first, A, 0)
    for store in (second, first):
        with pytest.raises(StoreConflict, match="offset 0"):
            begin(store, A, 9)
    assert world.store().load(A) == stored(0, 1)


def test_a_new_partition_of_a_topic_is_told_from_a_new_topic(world):
    store = world.store()
    begin(store, A, 5)
    assert claim(world.store(), B) == Claimed(None, topic_begun=True)
    assert claim(world.store(), Partition("returns", 0)) == Claimed(None)


def test_a_position_is_stored_whole(world):
    store = world.store()
    begin(store, A, 5)
    whole = Position(9, leader_epoch=0, topic_id="kf3UUGa7QW2JdZjQPBpGJw")
    assert store.commit({A: Progress(whole)}).result(SECONDS) == {}
    assert store.commit({A: Progress(Position(9))}).result(SECONDS) == {}
    assert world.store().load(A).position == whole
    assert store.commit({A: Progress(Position(9, 4))}).result(SECONDS) == {}
    assert claim(world.store(), A).stored.position == Position(9, 4, whole.topic_id)


def test_an_offset_of_another_topology_is_refused_unless_it_is_adopted(world):
    """Storm 37: two topologies under one name do not share an offset unawares.

    Faults Z11: refused unless it is adopted.
    """
    world.put(A, STORM)
    store = world.store()
    assert store.load(A) == StoredOffset(Position(41), "wc-3", "wc")
    with pytest.raises(StoreForeign, match="'wc-3', not of 'shop-1'"):
        claim(store, A)
    assert world.raw(A) == STORM
    assert claim(store, A, adopt=True).foreign
    store.move(A, Position(3), "ignore_stored_offsets").result(SECONDS)
    assert world.store().load(A) == stored(3, 1)
    assert not claim(store, A).foreign


LATER = STORM[:-1] + b',"headrace":{"version":2,"writer":["w"],"lease":17}}'


@pytest.mark.parametrize("data", [b"", STORM[:-1], b"\xff", LATER, b"[" * 300_000])
def test_corrupt_is_not_absent(world, data):
    """Promise 8: what cannot be read never looks like "no offset".

    O06: in a rolling upgrade nothing is guessed of what a later version wrote.

    Storm 8: an error is not "no offset". Storm 13: what is read back is checked.
    Faults Z07: the bytes stay as they are.
    """
    world.put(A, data)
    store = world.store()
    for ask in (lambda: store.load(A), lambda: claim(store, A), lambda: begin(store, A, 0)):
        with pytest.raises(StoreCorrupt, match="shop/orders/partition_0"):
            ask()
    assert world.raw(A) == data
    store.move(A, Position(7), "an operator").result(SECONDS)
    assert commit(store, {A: 8}) == {}


def test_what_an_earlier_version_wrote_is_taken_up_where_it_stopped(world):
    """O06: it knew neither epochs nor transactions."""
    earlier = STORM[:-1].replace(b"wc-3", b"shop-1") + b',"headrace":{"writer":"w","sequence":3}}'
    world.put(A, earlier)
    store = world.store()
    taken = claim(store, A)
    assert (taken.stored.offset, taken.stored.epoch) == (41, 1)
    assert commit(store, {A: 50}) == {}
    assert node(world, A)["offset"] == 50


def test_an_adopted_node_is_missed_too(world):
    """Promise 8."""
    world.put(A, STORM)
    claim(world.store(), A, adopt=True)
    world.delete(world.path(A))
    with pytest.raises(StoreMissing):
        claim(world.store(), A)


def test_a_node_is_missing_where_one_was(world):
    """Promise 8: an offset that was stored and is gone is no new partition.

    Faults Z06: that partition stops, the others go on.
    """
    store = world.store()
    begin(store, A, 5)
    begin(store, B, 5)
    world.delete(world.path(A))
    refused = commit(store, {A: 6, B: 6})
    assert isinstance(refused[A], StoreMissing)
    assert (list(refused), node(world, B)["offset"]) == ([A], 6)
    for ask in (lambda: claim(world.store(), A), lambda: begin(world.store(), A, 0)):
        with pytest.raises(StoreMissing, match="shop/orders/partition_0"):
            ask()
    operator = world.store()
    with pytest.raises(StoreMissing):
        claim(operator, A)
    operator.move(A, Position(6), "an operator").result(SECONDS)
    assert claim(world.store(), A).stored.offset == 6


def test_a_topic_that_an_operator_deleted_begins_anew(world):
    store = world.store()
    begin(store, A, 5)
    world.delete(world.path(A).rpartition("/")[0])
    assert claim(store, A) == Claimed(None)
    begin(store, A, 0)
    assert world.store().load(A) == stored(0, 1)


def test_an_offset_never_moves_back(world):
    """Promise 2: the stored offset never moves back; other partitions are stored."""
    store = world.store()
    begin(store, A, 5)
    begin(store, B, 5)
    assert commit(store, {A: 10}) == {}
    refused = commit(store, {B: 8, A: 9})
    error = refused.pop(A)
    assert isinstance(error, OffsetWouldMoveBack)
    assert (error.stored, error.offset, refused) == (10, 9, {})
    assert (node(world, A)["offset"], node(world, B)["offset"]) == (10, 8)


def test_only_a_move_lowers_an_offset(world):
    """Promise 2: an explicit command may, under the owner's epoch, and it is logged."""
    store, other = world.store(), world.store()
    begin(store, A, 50)
    with capture_logs() as logs:
        store.move(A, Position(20), "retention").result(SECONDS)
    assert logs == [
        {
            "event": "offset_moved",
            "log_level": "info",
            "partition": "orders[0]",
            "before": 50,
            "offset": 20,
            "reason": "retention",
        }
    ]
    assert commit(store, {A: 21}) == {}
    with pytest.raises(OwnershipLost):
        other.move(A, Position(0), "no claim").result(SECONDS)
    claim(other, A)
    with pytest.raises(Fenced):
        store.move(A, Position(0), "a zombie").result(SECONDS)
    assert world.store().load(A) == stored(21, 2)


def test_more_partitions_than_one_write_may_hold_are_committed(world):
    store = world.store()
    partitions = [Partition("orders", number) for number in range(501)]
    for future in [store.begin(partition, Position(0)) for partition in partitions]:
        future.result(SECONDS)
    claim(world.store(), partitions[7])
    refused = commit(store, dict.fromkeys(partitions, 3))
    assert {each: type(error) for each, error in refused.items()} == {partitions[7]: Fenced}
    assert [node(world, each)["offset"] for each in partitions[5:9]] == [3, 3, 0, 3]
    assert node(world, partitions[-1])["offset"] == 3


def found(world, partition) -> Progress | Position:
    loaded = world.store().load(partition)
    if loaded.transactions is None:
        return Position(loaded.offset)
    return Progress(loaded.position, loaded.transactions)


def test_a_plan_is_stored_with_its_offset_and_read_back_whole(world):
    """Promise 14: every change of what is open is one write; an equal plan is not written again.

    Storm 42: the record of a transaction is one write, with the offset it goes on from.
    """
    store = world.store()
    begin(store, A, 5)
    renewed = plan(5, 12)
    (only,) = renewed.transactions.open
    again = replace(renewed.transactions, open=(replace(only, attempt=2),))
    for each in (
        plan(5),  # nothing is open
        plan(5, 9),  # planned
        plan(5, 12),  # grown
        replace(renewed, transactions=again),  # in another attempt
        plan(5, 12, 20, 21),  # two more
        plan(12, 20, 21, committed=1),  # the first is committed in every sink
        plan(21, committed=3),
        plan(21, 30, committed=3),
    ):
        before = world.raw(A)
        assert commit_plans(store, {A: each}) == {}
        written = world.raw(A)
        assert written != before
        assert found(world, A) == each
        assert commit_plans(store, {A: each}) == {}
        assert world.raw(A) == written
    assert node(world, A)["offset"] == 21


def test_a_plain_position_leaves_no_transactions(world):
    """Also where the offset stays: an at-least-once run goes on from there, and says so."""
    store = world.store()
    for partition, offset in ((A, 5), (B, 7)):
        begin(store, partition, 5)
        assert commit_plans(store, {partition: plan(5, 9, committed=3)}) == {}
        with capture_logs() as logs:
            assert commit(store, {partition: offset}) == {}
            assert commit(store, {partition: offset + 1}) == {}
        assert [log for log in logs if log["event"] == "transactions_dropped"] == [
            {
                "event": "transactions_dropped",
                "log_level": "warning",
                "partition": str(partition),
                "txids": [4],
            }
        ]
        assert "transactions" not in node(world, partition)["headrace"]
        assert found(world, partition) == Position(offset + 1)


def test_a_plan_with_a_hole_stores_nothing(world):
    """Promise 14: and is told at once, not by whoever claims the partition next."""
    store = world.store()
    begin(store, A, 5)
    begin(store, B, 5)
    before = world.raw(A), world.raw(B)
    with pytest.raises(ValueError, match="it was to begin at 6"):
        commit_plans(store, {B: plan(5, 9), A: Progress(Position(6), opened_transactions(5, 9))})
    assert (world.raw(A), world.raw(B)) == before
    assert commit_plans(store, {A: plan(5, 9)}) == {}


def test_a_first_position_may_be_stored_with_transactions(world):
    first = plan(5, 9, committed=3)
    store = world.store()
    store.begin(A, first.position, 2, first.transactions).result(SECONDS)
    assert found(world, A) == first
    store.begin(B, Position(5), 2).result(SECONDS)
    assert found(world, B) == Position(5)


def test_a_move_leaves_only_the_transactions_it_is_given(world):
    """Promise 2: by policy or operator; those that it drops are logged by their txids."""
    store = world.store()
    begin(store, A, 5)
    assert commit_plans(store, {A: plan(5, 9, 12, committed=3)}) == {}
    kept = opened_transactions(20, committed=4)
    with capture_logs() as logs:
        store.move(A, Position(20), "retention", kept).result(SECONDS)
        assert found(world, A) == Progress(Position(20), kept)
        store.move(A, Position(3), "an operator").result(SECONDS)
    assert found(world, A) == Position(3)
    told = [(log["event"], log.get("txids")) for log in logs]
    assert told == [
        ("transactions_dropped", [5]),
        ("offset_moved", None),
        ("offset_moved", None),
    ]


def test_a_claim_keeps_what_is_open(world):
    """Promise 9: nothing changes but the epoch, which only grows, and the writer.

    Promise 14: the new owner replays what was open, and the former one can store no plan.
    """
    open_now = plan(5, 9, 12, committed=3)
    first = world.store()
    begin(first, A, 5)
    assert commit_plans(first, {A: open_now}) == {}
    for epoch in (2, 3):
        store = world.store()
        assert claim(store, A) == Claimed(
            replace(stored(5, epoch), transactions=open_now.transactions), topic_begun=True
        )
        assert found(world, A) == open_now
    assert isinstance(commit_plans(first, {A: plan(5, 9, committed=3)})[A], Fenced)
    assert commit_plans(store, {A: plan(9, 12, committed=4)}) == {}


def test_plans_of_400_partitions_are_stored_in_one_write(alone):
    store = alone.store()
    partitions = [Partition("orders", number) for number in range(400)]
    for future in [store.begin(partition, Position(5)) for partition in partitions]:
        future.result(SECONDS)
    plans = {each: plan(5, 66_000, 132_000, 198_000, committed=2**31) for each in partitions}
    before = alone.writes()
    assert commit_plans(store, plans) == {}
    spent = alone.writes() - before
    assert spent == (1 if isinstance(alone, MemoryNodesWorld) else 3)  # ours, and the probe's two
    loader = alone.store()
    assert all(loader.load(each).transactions == plans[each].transactions for each in partitions)


def test_open_transactions_that_do_not_fit_their_offset_are_corrupt(world):
    """Promise 8: an offset moved by hand does not pass for one with nothing open.

    Faults Z07: the bytes stay as they are. Storm 13: what is read back is checked.
    """
    first = world.store()
    begin(first, A, 5)
    assert commit_plans(first, {A: plan(5, 9)}) == {}
    edited = json.dumps(node(world, A) | {"offset": 6}).encode()
    world.put(A, edited)
    store = world.store()
    for ask in (lambda: store.load(A), lambda: claim(store, A)):
        with pytest.raises(StoreCorrupt, match=r"partition_0.*transactions: .*to begin at 6"):
            ask()
    assert isinstance(commit_plans(first, {A: plan(5, 12)})[A], StoreCorrupt)
    assert world.raw(A) == edited


def test_without_a_server_an_offset_is_unknown_and_not_absent(fragile):
    """Promise 8: a store that is away never looks like "no offset".

    Storm 8: it is an error, in bounded time.
    """
    store = fragile.store()
    fragile.lose()
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.load(A)
    assert time.monotonic() - started < slack(3.0 + 1.0 + 1.0)
    until("not store.available", lambda: not store.available, SECONDS)


def test_everything_waits_for_the_server_to_come_back(fragile):
    """Promise 15: with ZooKeeper away nothing fails; it is done when it is back.

    Storm 50: losing ZooKeeper ends nothing. Faults Z02: nor does it need a restart.
    """
    store = fragile.store()
    begin(store, A, 5)
    fragile.lose()
    until("not store.available", lambda: not store.available, SECONDS)
    futures = [
        store.commit({A: Progress(Position(9))}),
        store.claim(A),
        store.begin(B, Position(1)),
        store.move(B, Position(0), "a test"),
        store.commit({B: plan(0, 9)}),
    ]
    assert not any(future.done() for future in futures)
    fragile.find()
    committed, claimed, *_ = [future.result(SECONDS) for future in futures]
    assert (committed, claimed.stored) == ({}, stored(9, 2))
    assert store.available
    assert found(fragile, B) == plan(0, 9)


def test_close_fails_what_waits(fragile):
    store = fragile.store()
    begin(store, A, 5)
    fragile.lose()
    until("not store.available", lambda: not store.available, SECONDS)
    futures = [
        store.commit({A: Progress(Position(9))}),
        store.claim(A),
        store.begin(B, Position(1)),
    ]
    started = time.monotonic()
    store.close()
    assert time.monotonic() - started < slack(5.0)
    for future in futures:
        with pytest.raises(StoreUnavailable):
            future.result(1.0)
    store.close()
    fragile.find()


def test_a_closed_store_answers_nothing(world):
    store = world.store()
    begin(store, A, 5)
    store.close()
    for ask in (
        lambda: store.load(A),
        lambda: begin(store, A, 1),
        lambda: claim(store, A),
        lambda: commit(store, {A: 6}),
        lambda: store.move(A, Position(1), "a test").result(SECONDS),
    ):
        with pytest.raises(StoreUnavailable, match="not open"):
            ask()
    assert isinstance(world, MemoryNodesWorld) or not store.available


# Claims that are asked for at once, as in a takeover

MANY = [Partition("orders", number) for number in range(70)]


@pytest.fixture
def begun(alone):
    """All partitions are begun, by somebody else."""
    former = alone.store()
    for partition in MANY:
        begin(former, partition, partition.number)
    return alone


def test_each_is_claimed_with_its_own_offset_by_one_write(begun):
    store = begun.store()
    before = begun.writes()
    asked = [store.claim(partition) for partition in MANY]
    found = [future.result(SECONDS) for future in asked]
    assert [(each.stored.offset, each.stored.epoch) for each in found] == [
        (partition.number, 2) for partition in MANY
    ]
    assert begun.writes() - before <= len(MANY) + 2, "asking makes two"
    assert commit(store, {each: each.number + 1 for each in MANY}) == {}
    assert [node(begun, each)["offset"] for each in MANY] == [each.number + 1 for each in MANY]


def test_one_that_cannot_be_claimed_is_refused_alone(begun):
    corrupt, foreign, missing = MANY[3], MANY[5], MANY[7]
    begun.put(corrupt, b"{")
    begun.put(foreign, begun.raw(foreign).replace(b"shop-1", b"shop-2"))
    begun.delete(begun.path(missing))
    store = begun.store()
    asked = {partition: store.claim(partition) for partition in MANY}
    for partition, kind in {
        corrupt: StoreCorrupt,
        foreign: StoreForeign,
        missing: StoreMissing,
    }.items():
        with pytest.raises(kind):
            asked.pop(partition).result(SECONDS)
    assert {future.result(SECONDS).stored.epoch for future in asked.values()} == {2}


def test_what_is_asked_for_between_two_claims_is_done_between_them(begun):
    """A claim never overtakes a commit: that would store the old owner's state as the new one's."""
    store = begun.store()
    store.claim(MANY[0]).result(SECONDS)
    asked = [
        store.claim(MANY[1]),
        store.commit({MANY[0]: Progress(Position(40))}),
        store.claim(MANY[0]),
    ]
    assert asked[1].result(SECONDS) == {}
    found = asked[2].result(SECONDS).stored
    assert (found.offset, found.epoch) == (40, 3)
