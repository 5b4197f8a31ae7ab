"""O06: in a rolling upgrade two versions meet in ZooKeeper; the earlier one guesses nothing."""

from collections.abc import Iterator

import pytest

from partition.errors import StoreCorrupt
from tests.support.zookeeper import BOTH, A, B, NodesWorld, begin, claim, commit, node, opened

LATER = (  # its fields may mean anything
    b'{"topology":{"id":"shop-1","name":"shop-1"},"offset":41,'
    b'"headrace":{"version":2,"writer":["w"],"lease":17}}'
)
EARLIER = (  # knew neither epochs nor transactions
    b'{"topology":{"id":"shop-1","name":"shop-1"},"offset":41,"partition":0,"topic":"orders",'
    b'"broker":{"host":"","port":0},"headrace":{"writer":"w","sequence":3}}'
)


@pytest.fixture(params=BOTH)
def world(request: pytest.FixtureRequest) -> Iterator[NodesWorld]:
    yield from opened(request.param, request)


def test_what_a_later_version_wrote_stops_its_partition_and_stays_as_it_is(
    world: NodesWorld,
) -> None:
    store = world.store()
    begin(store, B, 5)
    world.put(A, LATER)
    for ask in (lambda: store.load(A), lambda: claim(store, A), lambda: begin(store, A, 0)):
        with pytest.raises(StoreCorrupt, match="which a later version of this package wrote"):
            ask()
    assert world.raw(A) == LATER
    assert commit(store, {B: 6}) == {}
    assert node(world, B)["offset"] == 6


def test_what_becomes_one_of_a_later_version_while_it_is_ours_is_not_overwritten(
    world: NodesWorld,
) -> None:
    """The replica with the later version has claimed it; ours commits as if nothing had been."""
    store = world.store()
    begin(store, A, 5)
    world.put(A, LATER)
    refused = commit(store, {A: 6})
    assert list(refused) == [A]
    assert world.raw(A) == LATER


def test_what_an_earlier_version_wrote_is_taken_up_where_it_stopped(world: NodesWorld) -> None:
    world.put(A, EARLIER)
    store = world.store()
    taken = claim(store, A)
    assert (taken.stored.offset, taken.stored.epoch) == (41, 1)
    assert commit(store, {A: 50}) == {}
    assert node(world, A)["offset"] == 50
