from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.calls import Sent, call_each, call_fan_out
from topology.errors import BoltError, LineageLost, NothingReturned
from topology.monitoring import text_of
from topology.record import SKIP, Reject, RejectRows
from topology.vectorised import PARENT, call_columns


def plain(called):
    """The values that a call sent into the default stream, and the inputs of each."""
    sent = called.sent.get("default", Sent([], None))
    piece = sent.piece if isinstance(sent.piece, list) else sent.piece.to_pydict()["n"]
    return piece, list(range(len(piece))) if sent.parents is None else sent.parents.tolist()


@pytest.mark.parametrize(
    ("function", "error", "reason"),
    [
        (lambda value: 6 // (value - 2), ZeroDivisionError, ""),
        (lambda value: None if value == 2 else value, NothingReturned, "bolt 'b' returned None"),
        (lambda value: (v for v in [1]) if value == 2 else value, BoltError, "a generator"),
        (lambda value: next(iter([])) if value == 2 else value, BoltError, "StopIteration"),
    ],
)
def test_bad_call_fails_its_value_alone(function, error, reason):
    called = call_each("b", function, [1, 2, 3])
    assert plain(called)[1] == [0, 2]
    assert list(called.failures) == [1]
    assert isinstance(called.failures[1], error)
    assert reason in str(called.failures[1])


def test_bolt_that_fails_on_a_list_names_the_way_to_fan_out():
    for call, function in [(call_each, lambda row: row["n"]), (call_fan_out, lambda row: [row.n])]:
        failures = call("b", function, [[{"n": 1}], 7]).failures
        assert "the value is a list. To send each of its items, use flat_map()" in text_of(
            failures[0]
        )
        assert "flat_map" not in text_of(failures[1])


def test_an_error_that_is_raised_again_and_again_gets_one_note():
    error = TypeError("the same")

    def fail(_value):
        raise error

    call_each("b", fail, [[1], [2], [3]])
    assert text_of(error).count("flat_map") == 1


@given(st.lists(st.sampled_from(["value", "skip", "raise", "none"]), max_size=60))
def test_every_value_is_answered_exactly_once(kinds):
    """Promise 5, for a chunk: each input is in the output, dropped or failed."""

    def act(pair):
        place, kind = pair
        if kind == "raise":
            raise ValueError(place)
        return {"value": place, "skip": SKIP, "none": None}[kind]

    called = call_each("act", act, list(enumerate(kinds)))
    values = [i for i, kind in enumerate(kinds) if kind == "value"]
    assert sorted(called.failures) == [i for i, k in enumerate(kinds) if k in ("raise", "none")]
    assert plain(called) == (values, values)
    has_no_lineage = bool(called.sent) and called.sent["default"].parents is None
    assert has_no_lineage == ({*kinds} <= {"value"}), "nothing was dropped"


def batch(*numbers):
    return pa.RecordBatch.from_pydict({"n": list(numbers)})


def reversed_signs(rows):
    return batch(*[-n for n in rows["n"].to_pylist()])


@pytest.mark.parametrize(
    ("function", "row_by_row", "numbers", "lineage"),
    [
        (lambda b: b.filter(pc.greater(b["n"], 2)), False, [3, 5], [1, 3]),
        (lambda b: b.take(pa.array([0, 0, 2])), False, [1, 1, 2], [0, 0, 2]),
        (lambda b: b.filter(pc.greater(b["n"], 2)), True, [3, 5], [1, 3]),
        (reversed_signs, True, [-1, -3, -2, -5], [0, 1, 2, 3]),
    ],
)
def test_lineage_survives_filter_take_and_row_by_row(function, row_by_row, numbers, lineage):
    called = call_columns("b", function, batch(1, 3, 2, 5), row_by_row=row_by_row)
    assert plain(called) == (numbers, lineage)


def changed(lineage):
    return lambda b: pa.RecordBatch.from_pydict({"n": b["n"], PARENT: lineage})


@pytest.mark.parametrize(
    ("function", "row_by_row", "reason"),
    [
        *((lambda b, n=n: batch(*n), False, "bolt 'b' dropped the column '__parent' of its rows")
          for n in [(), (2, 2)]),
        *((lambda b, n=n: batch(*n), True, f"found {len(n)} rows, expected 2")
          for n in [(1,), (1, 2, 3)]),
        *((changed(lineage), False, "bolt 'b' changed the column '__parent'")
          for lineage in [pa.array([0, None]), pa.array([0, 2]), pa.array([-1, 0]),
                          pa.array([0.0, 1.0])]),
        (lambda b: b.to_pylist(), True, "bolt 'b' returned list, expected a pyarrow.RecordBatch"),
    ],
)  # fmt: skip
def test_rows_without_lineage_fail_the_batch(function, row_by_row, reason):
    called = call_columns("b", function, batch(1, 2), row_by_row=row_by_row)
    assert plain(called) == ([], [])
    assert set(called.failures) == {0, 1}
    assert isinstance(called.failures[0], BoltError if "list" in reason else LineageLost)
    assert reason in str(called.failures[0])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.booleans())
def test_bad_rows_of_a_vectorised_bolt_are_isolated_exactly(numbers, row_by_row):
    def strict(b):
        found = b["n"].to_pylist()
        if 9 in found:
            raise RejectRows({found.index(9): "nine"})
        if 7 in found:
            raise Reject("seven")
        return reversed_signs(b) if row_by_row else b.filter(pc.greater(b["n"], 4))

    called = call_columns("strict", strict, batch(*numbers), row_by_row=row_by_row)
    assert sorted(called.failures) == [i for i, n in enumerate(numbers) if n in (7, 9)]
    good = [(i, n) for i, n in enumerate(numbers) if n not in (7, 9)]
    kept = [(i, -n) for i, n in good] if row_by_row else [(i, n) for i, n in good if n > 4]
    assert plain(called) == ([n for _, n in kept], [i for i, _ in kept])


@pytest.mark.parametrize(
    ("reasons", "error"), [({7: "no"}, BoltError), (dict.fromkeys(range(2), "no"), Reject)]
)
def test_rejection_of_all_or_of_unknown_rows_fails_the_batch(reasons, error):
    called = call_columns("all", Mock(side_effect=RejectRows(reasons)), batch(0, 1))
    assert plain(called) == ([], [])
    assert {index: type(each) for index, each in called.failures.items()} == {0: error, 1: error}


def test_one_rejected_row_at_a_time_costs_a_bounded_number_of_calls():
    calls = []

    def process(rows):
        calls.append(rows.num_rows)
        for place, number in enumerate(rows.column("n").to_pylist()):
            if number % 2:
                raise RejectRows({place: "odd"})
        return rows

    numbers = list(range(3_000))
    called = call_columns("even", process, batch(*numbers))
    assert plain(called) == (numbers[::2], numbers[::2])
    assert sorted(called.failures) == numbers[1::2]
    assert sum(calls) < 40 * len(numbers)


@pytest.mark.parametrize(
    ("second", "numbers"), [(2.5, [1.0, 2.5]), ("text", None)], ids=["joined", "failed"]
)
def test_halves_of_different_types_are_joined_or_fail(second, numbers):
    def odd_types(rows):
        if len(rows) > 1:
            raise ValueError("not together")
        number = rows["n"][0].as_py()
        return pa.RecordBatch.from_pydict({"n": [second if number > 1 else number]})

    called = call_columns("odd", odd_types, batch(1, 2), row_by_row=True)
    if numbers:
        assert (plain(called), called.failures) == ((numbers, [0, 1]), {})
    else:
        assert sorted(called.failures) == [0, 1]
        assert "bolt 'odd' returned different columns per row" in str(called.failures[0])
