import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.errors import StoreCorrupt
from partition.interfaces import StoredOffset
from partition.offsets.znode import MAX_BYTES, OffsetNode, Writer, decode, decode_topic, encode
from partition.records import OpenTransaction, Partition, Position, Range, Transactions, epoch_runs

PLACE = Partition("orders", 3)
PATH = "/headrace/shop/orders/partition_3"
STORM = (
    b'{"topology":{"id":"wc-3-1400000000","name":"wc"},"offset":15266940,"partition":0,'
    b'"broker":{"host":"k1","port":9092},"topic":"t"}'
)
DIGEST = "00112233445566778899aabbccddeeff"


def open_node(transactions, offset=900):
    stored = StoredOffset(Position(offset, 3, "kf3"), "shop-1", "shop", 9, transactions)
    return OffsetNode(stored, Writer("abc", 4), "abc-1")


def told_of(read, data):
    """The error that says, in short, what is wrong with a node, and where it is."""
    with pytest.raises(StoreCorrupt) as caught:
        read(PATH, data)
    told = str(caught.value)
    assert caught.value.path == PATH
    assert PATH in told
    assert len(told) < 500
    return told


def test_a_node_has_storm_kafkas_fields_and_our_own():
    assert json.loads(encode(PLACE, open_node(None, 17))) == {
        "topology": {"id": "shop-1", "name": "shop"},
        "offset": 17,
        "partition": 3,
        "broker": {"host": "", "port": 0},
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


ENTRY = {"txid": 42, "attempt": 1, "first": 900, "end": 1300, "count": 400, "digest": DIGEST}
KIND = {"kind": "transactional", "committed": 41}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([], "headrace.transactions"),
        ({"kind": "opaque", "committed": 41}, "missing required field `open`"),
        ({"kind": "at-least-once", "committed": 41, "open": []}, "'at-least-once'"),
        ({"kind": "opaque", "committed": -1, "open": []}, "transactions.committed"),
        ({**KIND, "open": [7]}, "transactions.open[0]"),
        ({**KIND, "open": [{"txid": 42, "attempt": 1, "first": 900}]}, "`end`"),
        ({**KIND, "open": [ENTRY | {"count": None}]}, "only one"),
        ({**KIND, "open": [ENTRY | {"end": 2**63}]}, "open[0].end"),
        ({**KIND, "open": [ENTRY | {"first": True}]}, "open[0].first"),
        ({**KIND, "open": [ENTRY | {"digest": "0" * 5000}]}, "not 32 hex digits"),
        ({**KIND, "open": [ENTRY | {"attempt": 0}]}, "attempt 0"),
        ({**KIND, "open": [ENTRY, ENTRY]}, "txid 42 where 43 was to come"),
        ({**KIND, "open": [ENTRY | {"first": 899}]}, "it was to begin at 900"),
        ({**KIND, "open": [ENTRY | {"end": 900}]}, "not be empty"),
        (
            {**KIND, "open": [ENTRY, ENTRY | {"txid": 43, "first": 1301, "end": 1400}]},
            "txid 43 covers 1301 to 1400; it was to begin at 1300",
        ),
    ],
)
def test_invalid_transactions_are_corrupt(found, says):
    """Promise 8: a record of them that cannot be read is not "nothing is open".

    Storm 42: a record that is not whole does not look like none.
    """
    fields = json.loads(encode(PLACE, open_node(None)))
    fields["headrace"]["transactions"] = found  # as `encode` would not write it
    assert says in told_of(decode, json.dumps(fields).encode())


def test_nothing_is_written_that_could_not_be_read_back():
    with pytest.raises(ValueError, match="it was to begin at 901"):
        encode(PLACE, open_node(Transactions("opaque", 41, (one(42, 900, 1300),)), offset=901))


def test_without_a_writer_a_node_is_just_what_storm_kafka_writes():
    node = OffsetNode(StoredOffset(Position(15266940), "wc-3-1400000000", "wc"))
    written = encode(Partition("t", 0), node)
    assert json.loads(written) == json.loads(STORM) | {"broker": {"host": "", "port": 0}}


LATER = (
    b'{"topology":{"id":"a"},"offset":3,"headrace":{"version":2,"new":[1]}}',
    b'{"topology":{"id":"a"},"offset":"of another form","headrace":{"version":2,"new":[1]}}',
)
CORRUPT = {
    decode: [
        *LATER,
        b"",
        b"null",
        b"{}",
        b'{"offset":3}',
        b'{"topology":{"id":"a"},"offset":"3"}',
        b'{"topology":{"id":"a"},"offset":true}',
        b'{"topology":{"id":"a"},"offset":-1}',
        b'{"topology":{"id":"a"},"offset":NaN}',
        b'{"topology":{"id":"a"},"offset":9223372036854775808}',
        b'{"topology":{"id":"a"},"offset":' + b"9" * 5000 + b"}",
        b'{"topology":{"id":"a"},"offset":3,"x":NaN}',
        b'{"topology":{"id":"a"},"offset":3,"x":"\xff"}',
        b'{"topology":{"id":"a"},"offset":3,"x":' + b"[" * 100_000,
        b'{"topology":{"id":"a"},"offset":3,"headrace":{"writer":"w"}}',
        b'{"topology":{"id":"a"},"offset":3,"headrace":{"writer":"w","sequence":1,"epoch":-1}}',
        (
            b'{"topology":{"id":"a"},"offset":3,'
            b'"headrace":{"writer":"w","sequence":1,"incarnation":"../../other"}}'
        ),
        b'{"topology":{"id":"a"},"offset":3}{}',
        STORM[:-1],
        STORM.ljust(MAX_BYTES + 1),
    ],
    decode_topic: [
        *LATER,
        b"127.0.0.1",
        b"[]",
        b'{"headrace":7}',
        b'{"headrace":{"begun":["0"]}}',
        b'{"headrace":{"begun":[0]}',
        b"\xff",
        b'{"a":' + b"[" * 100_000,
    ],
}


@pytest.mark.parametrize(
    ("read", "data"), [(read, each) for read, found in CORRUPT.items() for each in found]
)
def test_anything_else_is_corrupt_and_neither_absent_nor_empty(read, data):
    """Promise 8: unreadable is not absent; the error names the path and shows what is there.

    O06: what a later version wrote is not guessed, and so not overwritten by a claim.
    """
    told = told_of(read, data)
    assert data not in LATER or '"version" 2, which a later version' in told


def one(txid, first, end, attempt=1):
    return OpenTransaction(txid, attempt, Range(first, end, end - first, DIGEST, 5))


def test_ranges_are_promised_once_the_lowest_is_sealed():
    """Before that nobody can have committed any of them, since they are committed in order."""
    planned = OpenTransaction(42, 1, Range(900, 1300))
    assert not Transactions("opaque", 41).is_promised
    assert not Transactions("opaque", 41, (planned, one(43, 1300, 1301))).is_promised
    later = replace(planned, txid=43, range=Range(1300, 1400))
    assert Transactions("opaque", 41, (one(42, 900, 1300), later)).is_promised


@pytest.mark.parametrize(
    ("covers", "says"),
    [
        (Range(900, 1300, -1, DIGEST), "-1 records in 400 offsets"),
        (Range(900, 1300, 401, DIGEST), "401 records in 400 offsets"),
        (Range(900, 1300, 400, ""), "digest '', not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST[1:]), "not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST + "0"), "not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST.upper()), "not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST[:-1] + "\n"), "not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST, -1), "leader epoch -1"),
        (Range(900, 1300, 400), "only one of its count and digest"),
        (Range(900, 1300, None, DIGEST), "only one"),
        (Range(900, 1300, None, None, -5), "leader epoch -5"),
    ],
)
def test_a_range_that_no_records_can_have_is_refused(covers, says):
    found = Transactions("opaque", 41, (OpenTransaction(42, 1, covers),))
    with pytest.raises(ValueError, match=says):
        found.checked(900)


@given(
    st.integers(0, 2**40),
    st.integers(0, 2**31),
    st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 9)), max_size=6),
)
def test_ranges_laid_end_to_end_pass_from_their_beginning_only(offset, committed, cut):
    """Promise 14: txids are contiguous, and so are the ranges, however many are open."""
    place, made = offset, []
    for txid, (length, attempt) in enumerate(cut, committed + 1):
        made.append(one(txid, place, place + length, attempt))
        place += length
    found = Transactions("opaque", committed, tuple(made))
    assert found.checked(offset) is found
    if made:
        assert found.first == offset
        with pytest.raises(ValueError, match="it was to begin at"):
            found.checked(offset + 1)


def runs(epochs):
    offsets = np.arange(100, 100 + 2 * len(epochs), 2)
    return epoch_runs(list(enumerate(epochs)), offsets, lambda message: message[1])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50).map(sorted))
def test_each_run_begins_where_the_epoch_changes(epochs):
    expected = [
        (100 + 2 * at, epoch)
        for at, epoch in enumerate(epochs)
        if at == 0 or epochs[at - 1] != epoch
    ]
    assert runs(list(epochs)) == tuple(expected)
