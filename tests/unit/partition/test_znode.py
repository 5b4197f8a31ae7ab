import json

import pytest

from partition.chunk import Partition
from partition.errors import StoreCorrupt
from partition.offsets.znode import MAX_BYTES, Broker, OffsetNode, Writer, decode, encode, node_path
from partition.position import Position
from partition.store import StoredOffset

PLACE = Partition("orders", 3)
PATH = "/headrace/shop/orders/partition_3"
STORM = (
    b'{"topology":{"id":"wc-3-1400000000","name":"wc"},"offset":15266940,"partition":0,'
    b'"broker":{"host":"k1","port":9092},"topic":"t"}'
)


def test_a_node_lies_where_storm_kafka_puts_it() -> None:
    assert node_path("/headrace", "shop", PLACE) == PATH
    assert node_path("/headrace/", "shop", PLACE) == PATH


def test_a_node_is_read_back_as_it_was_written() -> None:
    for position in (Position(17), Position(17, 0), Position(17, 3, "kf3UUGa7QW2JdZjQPBpGJw")):
        node = OffsetNode(StoredOffset(position, "shop-1", "shop", 9), Writer("abc", 4), "abc-1")
        assert decode(PATH, encode(PLACE, node, Broker())) == node


def test_a_node_has_storm_kafkas_fields_and_our_own() -> None:
    stored = StoredOffset(Position(17, 3, "kf3"), "shop-1", "shop", 9)
    node = OffsetNode(stored, Writer("abc", 4), "abc-1")
    assert json.loads(encode(PLACE, node, Broker("k1", 9092))) == {
        "topology": {"id": "shop-1", "name": "shop"},
        "offset": 17,
        "partition": 3,
        "broker": {"host": "k1", "port": 9092},
        "topic": "orders",
        "headrace": {
            "writer": "abc",
            "sequence": 4,
            "epoch": 9,
            "leader_epoch": 3,
            "topic_id": "kf3",
            "incarnation": "abc-1",
        },
    }


def test_without_a_writer_a_node_is_just_what_storm_kafka_writes() -> None:
    node = OffsetNode(StoredOffset(Position(15266940), "wc-3-1400000000", "wc"))
    written = encode(Partition("t", 0), node, Broker("k1", 9092))
    assert json.loads(written) == json.loads(STORM)


def test_what_an_earlier_version_wrote_is_read_as_epoch_0() -> None:
    found = decode(PATH, STORM[:-1] + b',"headrace":{"writer":"w","sequence":3}}')
    assert (found.writer, found.stored.epoch, found.incarnation) == (Writer("w", 3), 0, None)


def test_what_storm_wrote_is_read() -> None:
    node = decode(PATH, STORM)
    assert node == OffsetNode(StoredOffset(Position(15266940), "wc-3-1400000000", "wc"))


def test_offset_zero_is_an_offset() -> None:
    """Promise 8: absent is not zero."""
    assert decode(PATH, b'{"topology":{"id":"a"},"offset":0}').stored == StoredOffset(
        Position(0), "a"
    )


@pytest.mark.parametrize(
    "data",
    [
        b'{"offset":3,"topology":{"name":null,"id":"a"}}',
        b'{"topology":{"id":"a"},"offset":3,"broker":null,"topic":7,"more":[1.5]}',
        b' { "topology" : { "id" : "a" } , "offset" : 3 } ',
    ],
)
def test_only_the_topologys_id_and_the_offset_are_needed(data: bytes) -> None:
    assert decode(PATH, data).stored == StoredOffset(Position(3), "a")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"17",
        b"{}",
        b'{"offset":3}',
        b'{"topology":{"id":"a"}}',
        b'{"topology":{},"offset":3}',
        b'{"topology":{"id":7},"offset":3}',
        b'{"topology":"a","offset":3}',
        b'{"topology":{"id":"a"},"offset":"3"}',
        b'{"topology":{"id":"a"},"offset":3.0}',
        b'{"topology":{"id":"a"},"offset":true}',
        b'{"topology":{"id":"a"},"offset":null}',
        b'{"topology":{"id":"a"},"offset":-1}',
        b'{"topology":{"id":"a"},"offset":NaN}',
        b'{"topology":{"id":"a"},"offset":1e400}',
        b'{"topology":{"id":"a"},"offset":9223372036854775808}',
        b'{"topology":{"id":"a"},"offset":' + b"9" * 5000 + b"}",
        b'{"topology":{"id":"a"},"offset":3,"x":NaN}',
        b'{"topology":{"id":"a"},"offset":3,"x":"\xff"}',
        b'{"topology":{"id":"a"},"offset":3,"x":' + b"[" * 100_000,
        b'{"topology":{"id":"a"},"offset":3,"headrace":{"writer":"w"}}',
        b'{"topology":{"id":"a"},"offset":3,"headrace":{"writer":"w","sequence":1,"epoch":-1}}',
        b'{"topology":{"id":"a"},"offset":3,"headrace":{"writer":"w","sequence":1,"epoch":"2"}}',
        (
            b'{"topology":{"id":"a"},"offset":3,'
            b'"headrace":{"writer":"w","sequence":1,"incarnation":"../../other"}}'
        ),
        b'{"topology":{"id":"a"},"offset":3}{}',
        STORM[:-1],
        STORM.ljust(MAX_BYTES + 1),
    ],
)
def test_anything_else_is_corrupt_and_never_absent(data: bytes) -> None:
    """Promise 8: unreadable is not absent; the error names the path and shows what is there."""
    with pytest.raises(StoreCorrupt) as caught:
        decode(PATH, data)
    assert caught.value.path == PATH
    assert PATH in str(caught.value)
    assert len(str(caught.value)) < 500


def test_every_truncation_of_a_node_is_corrupt() -> None:
    node = encode(PLACE, OffsetNode(StoredOffset(Position(17), "a"), Writer("w", 1)), Broker())
    for length in range(len(node)):
        with pytest.raises(StoreCorrupt):
            decode(PATH, node[:length])
