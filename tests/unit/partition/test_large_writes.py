"""A server that ends the connection at a request that is too large for it, and says nothing."""

import pytest
from structlog.testing import capture_logs

from partition.chunk import Partition
from partition.errors import StoreError
from partition.memory import MemoryNodes, MemoryStore
from partition.offsets.lost_writes import LostWrites
from partition.offsets.requests import OutcomeUnknown, Reply, Request, SetNode, Write, size_of
from partition.position import Position

PARTITIONS = [Partition("orders", number) for number in range(40)]
SECONDS = 10.0


class SmallNodes(MemoryNodes):
    """Takes so many bytes in one write."""

    def __init__(self) -> None:
        super().__init__()
        self.most_bytes = 1 << 30
        self.lost = 0

    def answer(self, request: Request, session: object = None) -> Reply:
        if isinstance(request, Write) and sum(map(size_of, request.operations)) > self.most_bytes:
            self.lost += 1
            raise OutcomeUnknown("ConnectionLoss")
        return super().answer(request, session)


def opened(nodes: SmallNodes) -> MemoryStore:
    store = MemoryStore(nodes, pipeline="shop", topology_id="shop-1")
    store.open()
    for partition in PARTITIONS:
        store.begin(partition, Position(0)).result(SECONDS)
    return store


def commit(store: MemoryStore, offset: int) -> dict[Partition, StoreError]:
    wanted = {partition: Position(offset) for partition in PARTITIONS}
    return dict(store.commit(wanted).result(SECONDS))


def test_a_write_that_never_gets_a_reply_is_split_until_it_does_and_the_size_is_kept():
    """Faults Z14."""
    nodes = SmallNodes()
    store = opened(nodes)
    nodes.most_bytes = 3_000
    with capture_logs() as told:
        assert commit(store, 5) == {}
    splits = [event["bytes"] for event in told if event["event"] == "commit_split"]
    assert splits == sorted(splits, reverse=True)
    assert 1_500 <= splits[-1] <= 3_000
    lost = nodes.lost
    assert commit(store, 6) == {}
    assert nodes.lost == lost, "what fits is known by now"
    assert {store.load(each).offset for each in PARTITIONS} == {6}


def test_one_lost_connection_splits_nothing():
    nodes = SmallNodes()
    store = opened(nodes)
    nodes.lose_replies = 1
    with capture_logs() as told:
        assert commit(store, 5) == {}
    assert [event["event"] for event in told] == ["commit_read_back"]


def test_a_single_node_that_never_gets_a_reply_is_an_error_and_not_tried_for_ever():
    """Faults Z14."""
    nodes = SmallNodes()
    store = opened(nodes)
    nodes.most_bytes = 100
    with pytest.raises(StoreError, match=r"10 writes in a row got no reply.*jute\.maxbuffer"):
        commit(store, 5)
    with pytest.raises(StoreError, match=r"jute\.maxbuffer"):
        store.claim(PARTITIONS[0]).result(SECONDS)
    nodes.most_bytes = 1 << 30
    assert store.claim(PARTITIONS[0]).result(SECONDS).stored.offset == 0


def test_writes_of_many_nodes_that_are_lost_at_one_moment_are_no_error():
    lost = LostWrites()
    for _ in range(9):
        for partition in PARTITIONS:
            lost.count([SetNode(f"/orders/{partition.number}", b"", 0)])
    with pytest.raises(StoreError, match="10 writes in a row"):
        lost.count([SetNode("/orders/0", b"", 0)])
    lost.end()
    lost.count([SetNode("/orders/0", b"", 0)])
