import json

import pytest

from partition.errors import StoreCorrupt
from partition.offsets.znode import TopicNode, decode_topic, encode_topic, topic_path

PATH = "/headrace/shop/orders"


def test_a_topics_node_lies_above_its_partitions() -> None:
    assert topic_path("/headrace/", "shop", "orders") == PATH


def test_the_partitions_that_were_begun_are_read_back() -> None:
    data = encode_topic(TopicNode(frozenset({2, 0, 10})))
    assert json.loads(data) == {"headrace": {"begun": [0, 2, 10]}}
    assert decode_topic(PATH, data).begun == {0, 2, 10}


@pytest.mark.parametrize("data", [b"", b"{}", b'{"headrace":{}}', b'{"other":[1]}'])
def test_a_node_that_names_none_has_none(data: bytes) -> None:
    assert decode_topic(PATH, data).begun == frozenset()


def test_what_others_keep_there_is_kept() -> None:
    node = decode_topic(PATH, b'{"owner":{"team":"shop"},"headrace":{"begun":[1]}}')
    again = encode_topic(TopicNode(node.begun | {2}, node.first, node.others))
    assert json.loads(again) == {"owner": {"team": "shop"}, "headrace": {"begun": [1, 2]}}


@pytest.mark.parametrize(
    "data",
    [
        b"127.0.0.1",
        b"[]",
        b'{"headrace":7}',
        b'{"headrace":{"begun":["0"]}}',
        b'{"headrace":{"begun":[0]}',
        b"\xff",
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_anything_else_is_corrupt_and_not_empty(data: bytes) -> None:
    """Promise 8: an unreadable list never looks like an empty one."""
    with pytest.raises(StoreCorrupt, match=PATH):
        decode_topic(PATH, data)


def test_how_many_partitions_there_were_at_first_is_kept():
    node = TopicNode(frozenset({0}), 4)
    assert decode_topic("/t", encode_topic(node)) == node


def test_a_list_that_a_later_version_wrote_is_refused_and_says_so():
    """O06."""
    with pytest.raises(StoreCorrupt, match='"version" 2, which a later version'):
        decode_topic(PATH, b'{"headrace":{"version":2,"begun":{"all":true}}}')
