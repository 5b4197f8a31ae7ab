"""What comes from outside ends in a value or in its room's own error, whatever it is.

Nodes of ZooKeeper, messages of topics that others can write, entries of tables, and the
configuration: valid ones are damaged, with what has broken parsers elsewhere among the damage.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partition import storm_offsets as storm
from partition.errors import StoreCorrupt, StormUnreadable
from partition.interfaces import StoredOffset
from partition.offsets.znode import (
    OffsetNode,
    TopicNode,
    Writer,
    decode,
    decode_topic,
    encode,
    encode_topic,
)
from partition.records import OpenTransaction, Partition, Position, Range, Transactions
from partition.replicas.heartbeat import decode_control, decode_member, decode_plan
from service.cli.control import decode_changes
from sinks.kafka.client import Cluster
from sinks.kafka.transactions_topic import OwnershipLog
from topology.errors import SinkFailed

DEEP = 100_000
LONGEST = 2_000
HOSTILE = [
    b"[" * DEEP, b'{"a":' * DEEP, b"[" * 900 + b"]" * 900, b"9" * 5_000, b"-" + b"9" * 400,
    b"1e999", b"-1e-999", b"0.1e", b"NaN", b"Infinity", b"-1", b"1.5", b"9223372036854775808",
    b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b'"\\u0000"', b'"\x00"', b'"\xff\xfe"',
    b"\xc3", b"\xef\xbb\xbf", b'"' + b"a" * 70_000 + b'"', b'"../../../etc/passwd"',
    b'"0-999999999999"', b'"5-1,-3"', b'"\\n{\\"event\\":\\"forged\\"}"',
]  # fmt: skip
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null')
DIGEST = "00112233445566778899aabbccddeeff"
OPENED = OpenTransaction(42, 1, Range(900, 1300, 399, DIGEST, 5))
OPEN = Transactions("transactional", 41, (OPENED,))
NODE = encode(
    Partition("orders", 3),
    OffsetNode(
        StoredOffset(Position(900, 3, "kf3"), "shop-1", "shop", 9, OPEN), Writer("abc", 4), "abc-1"
    ),
)
MEMBER = b'{"version":1,"process":"p","seen":3,"holds":{"t":"0-5,7"},"way":"balanced","more":[1]}'
PLAN = (
    b'{"version":1,"number":4,"leader":"a","owners":{"a":{"t":"0-5,7"}},'
    b'"leaving":{"b":{"3":{"t":"6"}}},"rebalanced":2}'
)
NOTE = b'{"by":"me","why":"so","at_ms":5}'


class Parser(NamedTuple):
    read: Callable[[bytes], object]
    valid: bytes
    error: type[Exception]


def _claims(data):
    key, _, value = data.partition(b"\n")
    claims = OwnershipLog(Cluster({}, "fuzzed", "t"), "t", "shop", "out")
    claims.take(key, value)
    return claims


def at_path(decode, *more):
    return lambda data: decode("/p", data, *more)


CONTROL = b'{"version":1,"paused":' + NOTE + b',"drained":{"a":' + NOTE + b'},"rebalance":3}'
CHANGES = b'[{"by":"me","why":"so","at_ms":5,"partition":"t[0]","from":3,"to":4}]'
CLIENT = b'{"firstOffset":5,"lastOffset":7,"topologyId":"a"}'
CLAIM = b'["shop","out","l","n"]\n{"producer":"p","epoch":3,"txid":4,"more":{"a":[1]}}'
TOPIC = encode_topic(TopicNode(frozenset({0, 1}), 2, {}))
BATCH = b'{"offset":5,"nextOffset":7}'
PARSERS = {
    "offset": Parser(at_path(decode), NODE, StoreCorrupt),
    "topic": Parser(at_path(decode_topic), TOPIC, StoreCorrupt),
    "replica": Parser(at_path(decode_member, 1), MEMBER, StoreCorrupt),
    "plan": Parser(at_path(decode_plan), PLAN, StoreCorrupt),
    "control": Parser(at_path(decode_control), CONTROL, StoreCorrupt),
    "changes": Parser(at_path(decode_changes), CHANGES, StoreCorrupt),
    "storm's core": Parser(at_path(storm.decode_core), NODE, StormUnreadable),
    "storm's batch": Parser(at_path(storm.decode_kafka_batch), BATCH, StormUnreadable),
    "storm's client": Parser(at_path(storm.decode_client_batch), CLIENT, StormUnreadable),
    "storm's transaction": Parser(at_path(storm.decode_transaction), b"4", StormUnreadable),
    "claim": Parser(_claims, CLAIM, SinkFailed),
}


def complaint(parser, data):
    """What the parser says of the bytes; nothing if it takes them. Other errors are raised."""
    try:
        parser.read(data)
    except parser.error as error:
        return str(error)
    return ""


@st.composite
def damaged(draw, valid):
    data = valid
    for _ in range(draw(st.integers(1, 2))):
        values = list(VALUE.finditer(data[:5_000]))
        kind = draw(st.sampled_from(["value", "value", "insert", "cut", "repeat", "bytes"]))
        if kind == "value" and values:
            first, end = draw(st.sampled_from(values)).span()
            data = data[:first] + draw(st.sampled_from(HOSTILE)) + data[end:]
        elif kind == "insert":
            at = draw(st.integers(0, min(len(data), 5_000)))
            data = data[:at] + draw(st.sampled_from(HOSTILE)) + data[at:]
        elif kind == "cut":
            data = data[: draw(st.integers(0, len(data)))]
        elif kind == "repeat":
            first = draw(st.integers(0, min(len(data), 5_000)))
            data = data[:first] + data[first : first + 50] * 3 + data[first:]
        else:
            data += draw(st.binary(max_size=50))
    return data


@pytest.mark.parametrize("name", PARSERS)
def test_whatever_is_hostile_ends_in_the_parsers_own_error(name):
    parser = PARSERS[name]
    assert parser.read(parser.valid) is not None

    @settings(max_examples=150)
    @given(st.one_of(damaged(parser.valid), st.binary(max_size=200)))
    def check(data):
        said = complaint(parser, data)
        assert len(said) < LONGEST
        assert said.isprintable()

    check()


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda data: data[:12].decode("ascii", "replace"))
def test_each_hostile_value_in_each_place_is_met(name, hostile):
    parser = PARSERS[name]
    for value in VALUE.finditer(parser.valid):
        first, end = value.span()
        data = parser.valid[:first] + hostile + parser.valid[end:]
        assert len(complaint(parser, data)) < LONGEST
