import json
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.errors import StoreUnavailable, StormUnreadable
from partition.offsets.requests import ZNode
from partition.records import Partition
from partition.storm_offsets import StormOffset, read_offsets

P0, P1 = Partition("t", 0), Partition("t", 1)


class Nodes:
    """A tree of nodes: a path's data; bytes as they are, else as JSON. Versions are 7."""

    def __init__(self, nodes):
        self.nodes = {
            path: data if isinstance(data, bytes) else json.dumps(data).encode()
            for path, data in nodes.items()
        }

    def children(self, path):
        below = [each for each in self.nodes if each.startswith(f"{path}/")]
        if not below and path not in self.nodes:
            return None
        return sorted({each.removeprefix(f"{path}/").split("/")[0] for each in below})[::-1]

    def get(self, path):
        if path in self.nodes:
            return ZNode(self.nodes[path], 7)
        return ZNode(b"") if self.children(path) is not None else None


def core(offset, number=0, topic="t"):
    return {
        "topology": {"id": "wc-3-1400000000", "name": "wc"},
        "offset": offset,
        "partition": number,
        "broker": {"host": "k1", "port": 9092},
        "topic": topic,
    }


def batch(offset, following, number=0, topic="t"):
    return {**core(offset, number, topic), "nextOffset": following, "instanceId": "i"}


def client(first, last):
    return {"firstOffset": first, "lastOffset": last, "topologyId": "wc-3"}


def offsets(layout, nodes, path="/s", topics=("t",)):
    found = read_offsets(Nodes(nodes), layout, path, topics)
    for each in found.values():
        if isinstance(each, StormUnreadable):
            raise each
    return {partition: each.offset for partition, each in found.items()}


def fault(layout, nodes, topics=("t",)):
    with pytest.raises(StormUnreadable) as caught:
        offsets(layout, nodes, topics=topics)
    return caught.value


def test_core_node_gives_offset_and_path():
    place = "/kafka/wc/partition_3"
    found = read_offsets(Nodes({place: core(15266940, 3)}), "core", "/kafka/wc", ["t"])
    stored = StormOffset(15266940, place, 7, "stored by topology wc-3-1400000000")
    assert found == {Partition("t", 3): stored}


def test_a_wildcard_s_topics_are_read_from_a_folder_each():
    nodes = {
        "/s/a/partition_0": core(3, topic="a"),
        "/s/b/partition_10": core(4, 10, topic="b"),
        "/s/other/partition_0": b"not looked at",
    }
    first, second = {Partition("a", 0): 3}, {Partition("b", 10): 4}
    assert offsets("core", nodes, topics=("a", "b", "new")) == first | second
    assert offsets("core", {"/s/a/partition_0": core(3, topic="a")}, "/s/a", ("a",)) == first
    trident = {"/s/coordinator/currtx": 9, "/s/user/a/partition_1/8": batch(1, 5, 1, "a")}
    assert offsets("trident", trident, topics=("a", "b")) == {Partition("a", 1): 5}


CORE, TRIDENT, CLIENT = "/s/partition_0", "/s/user/partition_0/4", "/s/user/t@0/4"
COMMITTED = {"/s/coordinator/currtx": 5, "/s/user/partition_0/3": batch(1, 2)}
WRITTEN = b'{"topology": {"id": "x"}, "offset": %s}'
INVALID = {
    ("core", CORE): [
        b"",
        b"\xff\xfe",
        b'{"topology": {"id": "\xff"}, "offset": 1}',
        b"[" * 100_000,
        core(None),
        core(2**63),
        core(1) | {"partition": "0"},
        core(1) | {"topology": {"name": "x"}},
        "class java.util.HashMap {offset=3}",
        core(1, number=1),
        core(1, topic="other"),
        WRITTEN % b"-0",
        WRITTEN % b'5, "offset": 5',
        b'{"topology": {"id": "x", "id": "y"}, "offset": 5}',
        b'{"offset": 5, "o\\u0066fset": 6, "topology": {"id": "x"}}',
    ],
    ("trident", TRIDENT): [
        b"null",
        b"\xac\xed\x00\x05",
        {"nextOffset": 1},
        batch(-1, 2),
        batch(3, 2),
        batch(1, 2, number=1),
        batch(1, 2, topic="u"),
    ],
    ("trident-client", CLIENT): [
        b"null",
        {"lastOffset": 1},
        client(2, 1),
        client(-2, -2),
        client(-1, 3),
        client(0, 2**63 - 1),
        b'{"firstOffset": -0, "lastOffset": 4}',
    ],
    **{("core", f"/s/partition_{number}"): [core(3)] for number in ("", "x", "01", "-1")},
    **{
        ("trident", f"/s/user/partition_0/{txid}"): [batch(3, 4)]
        for txid in ("lock", "04", "-1", "4 ")
    },
}


@pytest.mark.parametrize(
    ("layout", "path", "data"),
    [(*place, data) for place, found in INVALID.items() for data in found],
    ids=str,
)
def test_invalid_node_is_an_error_that_names_it(layout, path, data):
    """Storm 8, Storm 13: what cannot be read is never taken for "no offset", nor passed over."""
    error = fault(layout, {**COMMITTED, path: data})
    assert error.path == path
    assert "found " in str(error)
    assert "needed: " in str(error)
    assert len(str(error)) < 1000


def test_wrong_path_error_lists_the_children():
    """Storm 9: a wrong ZooKeeper or path shows itself before anything is stored."""
    assert fault("core", {"/other": b""}).found == "no such node"
    old = {f"/s/kafka{n}:9092:0": b"8" for n in range(7)}
    assert fault("core", old).found.endswith("'kafka4:9092:0' and 2 more")
    assert fault("core", {"/s": b""}).found == "nothing below it"
    current = {"/s/coordinator/currtx": 1}
    assert fault("trident", current).path == "/s/user"
    assert fault("trident-client", current | {"/s/user/x@0/1": client(1, 2)}).found == "'x@0'"


def test_what_may_mean_two_things_is_an_error():
    both = {"/s/partition_0": core(1), "/s/t/partition_0": core(2)}
    assert "/s/t leads to the second" in str(fault("core", both))
    error = fault("core", {"/s/partition_0": core(1)}, topics=("t", "u"))
    assert error.needed == "one topic of t, u"


def test_trident_goes_on_after_the_highest_committed_transaction():
    """Storm 10: the next offset is stored, not the last one, and never one for the other."""
    nodes = {
        "/s/coordinator/currtx": 12,
        "/s/coordinator/currattempts": {"12": 3},
        "/s/coordinator/meta/12": b"[GlobalPartitionInformation{topic=t, partitionMap={}}]",
        "/s/user/partition_0/9": batch(10, 20),
        "/s/user/partition_0/11": batch(20, 30),
        "/s/user/partition_0/12": batch(30, 40),
        "/s/user/partition_0/100": batch(40, 50),
    }
    found = read_offsets(Nodes(nodes), "trident", "/s", ["t"])
    told = "after transaction 11; to be committed next: 12"
    assert found == {P0: StormOffset(30, "/s/user/partition_0/11", 7, told)}


@pytest.mark.parametrize("current", [1, 5])
def test_an_empty_first_batch_means_the_begin_of_the_log(current):
    nodes = {"/s/coordinator/currtx": current, "/s/user/t@0/4": client(-1, -1)}
    assert offsets("trident-client", nodes) == {P0: 0}


def test_a_partition_without_a_transaction_has_no_offset():
    nodes = {
        "/s/coordinator/currtx": 5,
        "/s/user/partition_0": b"",
        "/s/user/partition_1/4": batch(1, 2, 1),
    }
    assert offsets("trident", nodes) == {P1: 2}


@pytest.mark.parametrize("layout", ["trident", "trident-client"])
def test_without_currtx_nothing_tells_what_is_committed(layout):
    """Storm 8: a coordinator that cannot be read is no coordinator at its first transaction."""
    nodes = {"/s/user/partition_0/1": batch(1, 2), "/s/user/t@0/1": client(1, 2)}
    error = fault(layout, nodes)
    assert (error.path, error.found) == ("/s/coordinator/currtx", "no such node")
    for data in (b"", b"null", b'"4"', b"4.5", b"-1", b"-0", b"{}", b"true"):
        assert fault(layout, nodes | {"/s/coordinator/currtx": data}).path.endswith("/currtx")


def test_vanished_node_means_storm_still_runs():
    nodes = Nodes({"/s/coordinator/currtx": 5, "/s/user/partition_0/4": batch(1, 2)})
    running = Mock(wraps=nodes)
    running.get = lambda path: None if path.endswith("/4") else nodes.get(path)
    found = read_offsets(running, "trident", "/s", ["t"])
    assert found[P0].needed == "a topology that is deactivated"


def test_no_answer_is_not_no_offset():
    """Storm 8: an error of ZooKeeper ends the reading."""
    away = Mock(wraps=Nodes({"/s/partition_0": core(1)}))
    away.get.side_effect = StoreUnavailable("/s", "away")
    with pytest.raises(StoreUnavailable):
        read_offsets(away, "core", "/s", ["t"])


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100)), min_size=1, max_size=8),
    st.integers(0, 31),
)
def test_resume_offset_follows_committed_transactions(sizes, current):
    """Storm 10: whichever transactions are there, none is skipped and none read twice."""
    transactions = sorted({number for number, _ in sizes})
    starts = [0]
    for _, size in sizes[: len(transactions)]:
        starts.append(starts[-1] + size + 1)
    committed = sum(number < current for number in transactions)
    kafka = {"/s/coordinator/currtx": current}
    kafka_client = dict(kafka)
    for place, number in enumerate(transactions):
        first, following = starts[place], starts[place + 1]
        kafka[f"/s/user/partition_0/{number}"] = batch(first, following)
        kafka_client[f"/s/user/t@0/{number}"] = client(first, following - 1)
    assert offsets("trident", kafka) == {P0: starts[committed]}
    assert offsets("trident-client", kafka_client) == {P0: starts[committed]}
