from operator import itemgetter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partition.records import OFFSET_BITS
from transactions.pending_rows import PendingRows


def numbers(*values):
    return np.array(values, np.int64)


def add(rows, piece, record_ids):
    rows.add(piece, numbers(*record_ids), np.ones(len(record_ids), np.int64))


def plain(taken):
    """The rows and their owners, as lists."""
    found = []
    for piece in taken.pieces:
        found += piece.column(0).to_pylist() if isinstance(piece, pa.RecordBatch) else piece
    return found, taken.record_ids.tolist()


def columns(*values):
    return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], ["row"])


def test_pieces_of_one_transaction_are_not_copied():
    rows = PendingRows()
    first, second = ["a", "b"], columns("c")
    add(rows, first, [5, 6])
    add(rows, second, [7])
    assert rows.num_rows == 3
    taken = rows.take(0, 1)
    assert taken.pieces[0] is first
    assert taken.pieces[1] is second
    assert taken.record_ids.tolist() == [5, 6, 7]
    assert rows.num_rows == 0
    assert rows.take(0, 1).pieces == []


def test_rows_are_sorted_by_record():
    rows = PendingRows()
    add(rows, ["c", "a", "d"], [7, 5, 8])
    add(rows, ["b", "a2"], [6, 5])
    taken = rows.take(0, 1)
    assert plain(taken) == (["a", "a2", "b", "c", "d"], [5, 5, 6, 7, 8])
    assert len(taken.pieces) == 1

    add(rows, columns("c", "a"), [7, 5])
    add(rows, columns("b"), [6])
    taken = rows.take(0, 1)
    assert plain(taken) == (["a", "b", "c"], [5, 6, 7])
    assert len(taken.pieces) == 1


def test_pieces_of_different_kinds_are_sorted_by_slices():
    rows = PendingRows()
    add(rows, columns("e", "f"), [9, 10])
    add(rows, ["a", "b", "d"], [5, 6, 8])
    add(rows, pa.RecordBatch.from_arrays([pa.array([7])], ["other"]), [7])
    taken = rows.take(0, 1)
    assert plain(taken) == (["a", "b", 7, "d", "e", "f"], [5, 6, 7, 8, 9, 10])
    assert [len(piece) for piece in taken.pieces] == [2, 1, 1, 2]


def test_failure_without_rows_leaves_pieces_alone():
    rows = PendingRows()
    piece = columns("a", "b")
    add(rows, piece, [5, 7])
    rows.discard_attempt(6)
    rows.discard_attempt(4)
    rows.discard_attempt(record_id_of(1, 5))
    assert rows.take(0, 1).pieces[0] is piece


def test_arrays_of_another_length_are_rejected():
    with pytest.raises(ValueError, match="a piece of 2 rows came with 1 record ids"):
        add(PendingRows(), ["a", "b"], [5])


RECORDS = st.tuples(st.integers(0, 1), st.integers(-1, 9))  # place, record
ADDED = st.tuples(st.just("add"), st.lists(RECORDS, max_size=8), st.booleans())
FAILED = st.tuples(st.just("void"), st.integers(0, 1), st.integers(0, 9))
TAKEN = st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 2))
DROPPED = st.tuples(st.just("drop"), st.integers(0, 1), st.just(0))


def record_id_of(place, record):
    return -1 if record < 0 else place << OFFSET_BITS | record


def txid_of(record):
    """Records 0 to 3 are of transaction 1, 4 to 7 of 2, the others of none."""
    return record // 4 + 1 if 0 <= record < 8 else 0


@settings(max_examples=300)
@given(st.lists(ADDED | FAILED | TAKEN | DROPPED, max_size=20))
def test_rows_equal_those_of_a_plain_list(calls):
    rows, model = PendingRows(), []  # model: place, txid, owner, row, void
    made = 0
    for call, first, second in [*calls, *(("take", p, t) for p in (0, 1) for t in (1, 2))]:
        if call == "add":
            record_ids = [record_id_of(place, record) for place, record in first]
            txids = [txid_of(record) for _place, record in first]
            values = [f"row {made + number}" for number in range(len(first))]
            made += len(first)
            piece = columns(*values) if second else values
            places = [place for place, _record in first]
            rows.add(piece, numbers(*record_ids), numbers(*txids))
            for place, txid, record_id, row in zip(places, txids, record_ids, values, strict=True):
                if record_id >= 0 and txid:
                    model.append([place, txid, record_id, row, False])
        elif call == "void":
            record_id = record_id_of(first, second)
            rows.discard_attempt(record_id)
            for each in model:
                each[4] |= each[2] == record_id
        elif call == "drop":
            rows.drop(first)
            model = [each for each in model if each[0] != first]
        else:
            taken = rows.take(first, second)
            found, record_ids = plain(taken)
            due = [each for each in model if each[:2] == [first, second]]
            expected = [(row, record_id) for _place, _txid, record_id, row, void in due if not void]
            expected.sort(key=itemgetter(1))
            assert list(zip(found, record_ids, strict=True)) == expected
            assert len(taken.record_ids) == len(found)
            model = [each for each in model if each[:2] != [first, second]]
        assert rows.num_rows == len(model)
    assert rows.num_rows == 0
