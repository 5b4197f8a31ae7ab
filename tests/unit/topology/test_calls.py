"""How bolts are called over a chunk: values, lineage, and what fails alone."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.calls import call_each, call_fan_out
from topology.errors import BoltError, LineageLost, NothingReturned
from topology.record import SKIP, Reject, RejectRows
from topology.vectorised import call_columns


def parents(called):
    count = len(called.piece)
    return list(range(count)) if called.parents is None else called.parents.tolist()


def test_a_function_over_a_chunk_keeps_its_order_and_needs_no_lineage():
    called = call_each("double", lambda value: value * 2, [1, 2, 3])
    assert (called.piece, called.parents, called.failures) == ([2, 4, 6], None, {})


def test_a_skipped_value_is_dropped_and_the_lineage_tells():
    called = call_each("even", lambda value: value if value % 2 == 0 else SKIP, [1, 2, 3, 4])
    assert called.piece == [2, 4]
    assert parents(called) == [1, 3]


def test_an_exception_fails_its_value_alone():
    def picky(value):
        if value == 2:
            raise Reject("two")
        return value

    called = call_each("picky", picky, [1, 2, 3])
    assert called.piece == [1, 3]
    assert parents(called) == [0, 2]
    assert list(called.failures) == [1]


def test_returning_none_is_an_error_naming_the_bolt_and_never_an_ack():
    called = call_each("forgetful", lambda value: None if value == 2 else value, [1, 2])
    assert called.piece == [1]
    assert isinstance(called.failures[1], NothingReturned)
    assert "forgetful" in str(called.failures[1])


def test_a_stop_iteration_in_a_bolt_loses_nothing():
    def careless(value):
        return next(iter([])) if value == 2 else value

    called = call_each("careless", careless, [1, 2, 3])
    assert called.piece == [1, 3]
    assert isinstance(called.failures[1], BoltError)


def test_a_generator_returned_by_a_plain_function_is_an_error():
    called = call_each("confused", lambda value: (v for v in [value]), [1])
    assert isinstance(called.failures[0], BoltError)


def test_a_generator_fans_out_and_each_child_knows_its_parent():
    called = call_fan_out("repeat", lambda n: (n for _ in range(n)), [2, 0, 3])
    assert called.piece == [2, 2, 3, 3, 3]
    assert parents(called) == [0, 0, 2, 2, 2]


def test_children_leave_together_or_not_at_all():
    """Promise 4, Storm 3: a generator that raises half-way emits nothing."""

    def half(value):
        yield value
        if value == 2:
            raise ValueError(value)
        yield value

    called = call_fan_out("half", half, [1, 2, 3])
    assert called.piece == [1, 1, 3, 3]
    assert parents(called) == [0, 0, 2, 2]
    assert list(called.failures) == [1]


def test_none_from_a_generator_fails_its_value_and_skip_drops_only_itself():
    called = call_fan_out("mixed", lambda n: iter([n, None] if n == 1 else [n, SKIP, n]), [1, 2])
    assert called.piece == [2, 2]
    assert isinstance(called.failures[0], NothingReturned)


def batch(*numbers):
    return pa.RecordBatch.from_pydict({"n": list(numbers)})


def test_a_vectorised_filter_keeps_lineage_by_itself():
    called = call_columns("big", lambda b: b.filter(pc.greater(b["n"], 2)), batch(1, 3, 2, 5))
    assert called.piece.to_pydict() == {"n": [3, 5]}
    assert parents(called) == [1, 3]


def test_a_vectorised_explode_keeps_lineage_through_take():
    take = pa.array([0, 0, 2])
    called = call_columns("explode", lambda b: b.take(take), batch(1, 2, 3))
    assert called.piece.to_pydict() == {"n": [1, 1, 3]}
    assert parents(called) == [0, 0, 2]


@pytest.mark.parametrize("numbers", [(), (1,), (2, 2), (1, 2, 3)])
def test_a_batch_built_anew_has_lost_its_lineage_however_many_rows_it_has(numbers):
    called = call_columns("lost", lambda b: batch(*numbers), batch(1, 2))
    assert len(called.piece) == 0
    assert set(called.failures) == {0, 1}
    assert isinstance(called.failures[0], LineageLost)
    assert str(called.failures[0]) == (
        "bolt 'lost' returned rows without the column '__parent', so their records cannot be "
        "told; keep the columns it does not know, or say row_by_row=True if row i is always "
        "made from row i"
    )


def test_a_bolt_that_says_row_by_row_may_build_its_batch_anew():
    called = call_columns("new", lambda b: batch(*[0] * len(b)), batch(1, 2), row_by_row=True)
    assert called.piece.to_pydict() == {"n": [0, 0]}
    assert called.parents is None


@pytest.mark.parametrize("numbers", [(), (1,), (1, 2, 3)])
def test_a_bolt_that_says_row_by_row_must_give_a_row_for_each(numbers):
    called = call_columns("new", lambda b: batch(*numbers), batch(1, 2), row_by_row=True)
    assert set(called.failures) == {0, 1}
    assert isinstance(called.failures[0], LineageLost)
    assert str(called.failures[0]) == (
        f"bolt 'new' says row_by_row and returned {len(numbers)} rows for 2; one for each is "
        "allowed"
    )


def test_a_bolt_that_says_row_by_row_may_still_filter_if_it_keeps_the_lineage():
    called = call_columns(
        "big", lambda b: b.filter(pc.greater(b["n"], 1)), batch(1, 2), row_by_row=True
    )
    assert parents(called) == [1]


def test_a_bolt_that_says_row_by_row_is_halved_and_called_again_like_any():
    def strict(b):
        numbers = b["n"].to_pylist()
        if 9 in numbers:
            raise RejectRows({numbers.index(9): "nine"})
        if 7 in numbers:
            raise ValueError("seven")
        return batch(*[-n for n in numbers])

    called = call_columns("strict", strict, batch(1, 7, 9, 2), row_by_row=True)
    assert sorted(called.failures) == [1, 2]
    assert called.piece.to_pydict() == {"n": [-1, -2]}
    assert parents(called) == [0, 3]


def test_a_vectorised_bolt_that_returns_something_else_says_what_is_allowed():
    called = call_columns("wrong", lambda b: b.to_pylist(), batch(1))
    assert "RecordBatch is allowed" in str(called.failures[0])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_bad_rows_of_a_vectorised_bolt_are_isolated_exactly(numbers):
    def strict(b):
        if pc.any(pc.equal(b["n"], 7)).as_py():
            raise Reject("seven")
        return b.filter(pc.greater(b["n"], 4))

    called = call_columns("strict", strict, batch(*numbers))
    assert sorted(called.failures) == [i for i, n in enumerate(numbers) if n == 7]
    kept = [(i, n) for i, n in enumerate(numbers) if n > 4 and n != 7]
    assert list(zip(parents(called), called.piece["n"].to_pylist(), strict=True)) == kept


@given(st.lists(st.sampled_from(["value", "skip", "raise", "none"]), max_size=60))
def test_every_value_is_answered_exactly_once(kinds):
    """Promise 5, for a chunk: each input is in the output, dropped or failed."""

    def act(pair):
        place, kind = pair
        if kind == "raise":
            raise ValueError(place)
        return {"value": place, "skip": SKIP, "none": None}[kind]

    called = call_each("act", act, list(enumerate(kinds)))
    assert called.piece == [i for i, kind in enumerate(kinds) if kind == "value"]
    assert sorted(called.failures) == [i for i, k in enumerate(kinds) if k in ("raise", "none")]
    if called.parents is not None:
        assert np.array_equal(called.parents, called.piece)


def test_rows_that_a_vectorised_bolt_names_are_rejected_and_it_goes_on_with_the_others():
    calls = []

    def process(batch):
        calls.append(batch.num_rows)
        numbers = batch.column("n").to_pylist()
        bad = {place: f"{number} is odd" for place, number in enumerate(numbers) if number % 2}
        if bad:
            raise RejectRows(bad)
        return batch

    called = call_columns("even", process, pa.record_batch({"n": [0, 1, 2, 3, 4]}))
    assert called.piece.to_pylist() == [{"n": 0}, {"n": 2}, {"n": 4}]
    assert called.parents.tolist() == [0, 2, 4]
    assert {place: str(error) for place, error in called.failures.items()} == {
        1: "1 is odd",
        3: "3 is odd",
    }
    assert calls == [5, 3]


def test_rows_are_rejected_by_places_of_the_batch_only():
    def process(batch):
        raise RejectRows({7: "no"})

    called = call_columns("all", process, pa.record_batch({"n": [0, 1]}))
    assert {type(error) for error in called.failures.values()} == {BoltError}
    assert sorted(called.failures) == [0, 1]


def test_a_chunk_of_which_every_row_is_rejected_leaves_nothing():
    def process(batch):
        raise RejectRows(dict.fromkeys(range(batch.num_rows), "no"))

    called = call_columns("all", process, pa.record_batch({"n": [0, 1]}))
    assert called.piece.num_rows == 0
    assert sorted(called.failures) == [0, 1]


def test_a_bolt_that_names_one_bad_row_at_a_time_is_called_a_bounded_number_of_times():
    calls = []

    def process(batch):
        calls.append(batch.num_rows)
        for place, number in enumerate(batch.column("n").to_pylist()):
            if number % 2:
                raise RejectRows({place: "odd"})
        return batch

    numbers = list(range(3_000))
    called = call_columns("even", process, pa.record_batch({"n": numbers}))
    assert [row["n"] for row in called.piece.to_pylist()] == numbers[::2]
    assert called.parents.tolist() == numbers[::2]
    assert sorted(called.failures) == numbers[1::2]
    assert sum(calls) < 40 * len(numbers)
