"""Claims that are asked for at once, as in a takeover: each for itself, for every OffsetStore."""

from collections.abc import Iterator

import pytest

from partition.errors import StoreCorrupt, StoreForeign, StoreMissing
from partition.interfaces import Progress
from partition.records import Partition, Position
from tests.support.zookeeper import BOTH, SECONDS, NodesWorld, begin, commit, node, opened

MANY = [Partition("orders", number) for number in range(70)]


@pytest.fixture(params=BOTH)
def world(request: pytest.FixtureRequest) -> Iterator[NodesWorld]:
    yield from opened(request.param, request, "quiet_zookeeper")


@pytest.fixture
def begun(world: NodesWorld) -> NodesWorld:
    """All partitions are begun, by somebody else."""
    former = world.store()
    for partition in MANY:
        begin(former, partition, partition.number)
    return world


def test_each_is_claimed_with_its_own_offset_by_one_write(begun: NodesWorld) -> None:
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


def test_one_that_cannot_be_claimed_is_refused_alone(begun: NodesWorld) -> None:
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


def test_what_is_asked_for_between_two_claims_is_done_between_them(begun: NodesWorld) -> None:
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
