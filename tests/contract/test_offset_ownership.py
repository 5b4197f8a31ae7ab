"""Who may write a partition's offset, for every OffsetStore: claims, fences, sessions."""

import json

import pytest

from partition.errors import (
    Fenced,
    OwnershipLost,
    StoreCorrupt,
    StoreMissing,
)
from partition.interfaces import Claimed, StoredOffset
from partition.records import Position
from tests.support.zookeeper import (
    BOTH,
    SECONDS,
    A,
    B,
    begin,
    claim,
    commit,
    node,
    opened,
)


@pytest.fixture(params=BOTH)
def world(request):
    yield from opened(request.param, request)


def stored(offset: int, epoch: int) -> StoredOffset:
    return StoredOffset(Position(offset), "shop-1", "shop-1", epoch)


def test_a_partition_must_be_claimed_before_it_is_committed(world):
    begin(world.store(), A, 5)
    assert isinstance(commit(world.store(), {A: 50})[A], OwnershipLost)


def test_the_former_owner_is_fenced_by_a_claim_alone(world):
    """Promise 9: a zombie's write does not land, before its successor's first or after.

    Storm 36: no write is unconditional. Faults Z10: a conflict is not tried again.
    """
    zombie, successor = world.store(), world.store()
    begin(zombie, A, 5)
    begin(zombie, B, 5)
    claim(successor, A)
    before = world.raw(A)
    for offset in (7, 9, 20):
        refused = commit(zombie, {B: offset, A: offset})
        assert list(refused) == [A]
        with pytest.raises(Fenced, match="epoch 2"):
            raise refused[A]
        assert world.raw(A) == before
    assert node(world, B)["offset"] == 20
    assert commit(successor, {A: 9}) == {}
    assert isinstance(commit(zombie, {A: 30})[A], Fenced)
    assert world.store().load(A) == stored(9, 2)


@pytest.mark.parametrize("writes", range(4))
def test_a_node_deleted_and_made_anew_is_not_the_zombies(world, writes):
    """Promise 9: also where it reaches the version that the zombie knows.

    Faults F2: an equal version is not the same node.
    """
    zombie, successor = world.store(), world.store()
    begin(zombie, A, 50)
    assert commit(zombie, {A: 51}) == {}
    assert commit(zombie, {A: 52}) == {}  # it knows version 2
    world.delete(world.path(A).rpartition("/")[0])
    begin(successor, A, 0)
    for offset in range(1, writes + 1):
        assert commit(successor, {A: offset}) == {}
    before = world.raw(A)
    assert isinstance(commit(zombie, {A: 60})[A], Fenced)
    assert world.raw(A) == before
    assert commit(successor, {A: 10}) == {}


@pytest.mark.parametrize("writes", range(3))
def test_a_node_put_back_by_hand_is_nobodys_until_it_is_claimed(world, writes):
    """Promise 9: the same bytes at the same path and version are another node.

    Faults Z13: what was put back is of nobody.
    """
    owner = world.store()
    begin(owner, A, 50)
    for offset in range(51, 51 + writes):
        assert commit(owner, {A: offset}) == {}
    backup = world.raw(A)
    world.delete(world.path(A))
    for _ in range(writes + 1):
        world.put(A, backup)
    assert isinstance(commit(owner, {A: 60})[A], Fenced)
    assert world.raw(A) == backup
    successor = world.store()
    assert claim(successor, A).stored.epoch == 2
    assert isinstance(commit(owner, {A: 60})[A], Fenced)
    assert commit(successor, {A: 61}) == {}


def test_a_claim_again_of_what_is_gone_with_its_topic_is_no_first_start(world):
    """Promise 8, Faults Z13: who had it knows that there was an offset."""
    store = world.store()
    begin(store, A, 50)
    world.end_session(store)
    world.delete(world.path(A).rpartition("/")[0])
    with pytest.raises(StoreMissing, match="partition_0 is missing"):
        store.claim(A, again=True).result(SECONDS)
    assert isinstance(commit(store, {A: 60})[A], StoreMissing)


def test_a_session_that_ends_takes_every_ownership_with_it(world):
    """Promise 9: then claimed again, nobody was there in between, and commits go on.

    Faults Z05: nothing is stored under what the session held.
    """
    store = world.store()
    begin(store, A, 5)
    begin(store, B, 5)
    assert commit(store, {A: 6}) == {}
    world.end_session(store)
    refused = commit(store, {A: 7, B: 7})
    assert {type(error) for error in refused.values()} == {OwnershipLost}
    assert set(refused) == {A, B}
    with pytest.raises(OwnershipLost):
        store.move(A, Position(9), "a zombie").result(SECONDS)
    assert claim(store, A) == Claimed(stored(6, 2), topic_begun=True, uninterrupted=True)
    assert commit(store, {A: 7}) == {}
    assert isinstance(commit(store, {B: 7})[B], OwnershipLost)


def test_a_partition_that_another_held_in_between_was_interrupted(world):
    store, other = world.store(), world.store()
    begin(store, A, 5)
    world.end_session(store)
    claim(other, A)
    assert claim(store, A) == Claimed(stored(5, 3), topic_begun=True)
    assert isinstance(commit(other, {A: 9})[A], Fenced)
    world.end_session(store)
    edited = json.loads(world.raw(A)) | {"offset": 7}
    world.put(A, json.dumps(edited).encode())  # by hand, our marks kept
    assert not claim(store, A).uninterrupted


def test_an_owner_whose_node_becomes_unreadable_stops(world):
    store = world.store()
    begin(store, A, 5)
    begin(store, B, 5)
    world.put(A, b"{")
    refused = commit(store, {A: 6, B: 6})
    assert isinstance(refused[A], StoreCorrupt)
    assert (list(refused), node(world, B)["offset"], world.raw(A)) == ([A], 6, b"{")


def test_a_claim_again_leaves_a_partition_that_another_has_taken_alone(world):
    """Promise 15: else a zombie would fence its successor, and nobody would read on."""
    zombie, successor = world.store(), world.store()
    begin(zombie, A, 5)
    assert zombie.claim(A, again=True).result(SECONDS).uninterrupted
    claim(successor, A)
    before = world.raw(A)
    with pytest.raises(Fenced, match="epoch 3"):
        zombie.claim(A, again=True).result(SECONDS)
    assert world.raw(A) == before
    assert commit(successor, {A: 6}) == {}
