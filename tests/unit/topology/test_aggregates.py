from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, TypedDict

import numpy as np
import pyarrow as pa
import pytest

from topology.aggregates import combiner, count, least, most, reducer, total, type_of
from topology.errors import AggregateFailed, InvalidTopology

MONEY = Annotated[Decimal, pa.decimal128(10, 2)]


class Span(TypedDict):
    low: int
    high: int


def merged(aggregate, values, groups=None):
    numbers = [0] * len(values) if groups is None else groups
    column = aggregate.merged(pa.array(values, aggregate.type), np.array(numbers, np.int64))
    assert column.type.equals(aggregate.type)
    return column.to_pylist()


def joined(one, other):
    return [*one, *other]


@pytest.mark.parametrize(
    ("aggregate", "values", "found"),
    [
        (count(), [1, 1, 5], 7),
        (total("x"), [3, None, -4], -1),
        (total("x"), [None], 0),
        (total("x", type=float), [0.5, None, 1.0], 1.5),
        (total("x", type=MONEY), [Decimal("1.25"), Decimal("-0.50"), None], Decimal("0.75")),
        (least("x"), [3, None, -4], -4),
        (least("x"), [None, None], None),
        (most("x", type=float), [0.5, None], 0.5),
        (most("x", type=str), ["b", "a", None], "b"),
        (least("x", type=bytes), [b"b", b"a"], b"a"),
        (most("x", type=date), [date(2026, 1, 2), date(2025, 1, 2)], date(2026, 1, 2)),
        (
            least("x", type=datetime),
            [datetime(2026, 1, 2, tzinfo=UTC), datetime(2025, 1, 2, tzinfo=UTC)],
            datetime(2025, 1, 2, tzinfo=UTC),
        ),
        (most("x", type=MONEY), [Decimal("1.25"), Decimal("-0.50")], Decimal("1.25")),
        (combiner([], lambda row: [row["x"]], joined, type=list[int]), [[1], [2, 3]], [1, 2, 3]),
        (reducer("", lambda a, row: a, type=str, merge=max), ["a", "c", "b"], "c"),
        (reducer("z", lambda a, row: a, type=str), ["a"], "a"),
    ],
)
def test_values_of_a_group_are_merged(aggregate, values, found):
    assert merged(aggregate, values) == [found]
    twice = merged(aggregate, [*values, *values], [1] * len(values) + [0] * len(values))
    assert twice == [found, found]
    assert merged(aggregate, []) == []


def test_a_sum_that_passes_its_type_is_refused_and_one_that_comes_back_is_not():
    largest = 2**63 - 1
    assert merged(total("x"), [largest, 1, -1]) == [largest]
    assert merged(total("x"), [-largest - 1, largest]) == [-1]
    with pytest.raises(AggregateFailed, match="overflows int64"):
        merged(total("x"), [largest, 1])
    digits = Decimal("99999999.99")
    assert merged(total("x", type=MONEY), [digits, digits, -digits]) == [digits]
    with pytest.raises(AggregateFailed, match="overflows decimal128"):
        merged(total("x", type=MONEY), [digits, Decimal("0.01")])


def test_a_reducer_changes_a_value_row_by_row_and_never_its_zero():
    def step(values, row):
        values.append(row)
        return values

    aggregate = reducer([0], step, type=list[int])
    before = pa.array([None, [5], None], aggregate.type)
    for _ in range(2):
        assert aggregate.reduced(before, [[1, 2], [3], []]).to_pylist() == [[0, 1, 2], [5, 3], [0]]


def test_a_reducer_merges_no_two_values_without_merge():
    aggregate = reducer("", lambda a, row: a, type=str)
    assert merged(aggregate, ["a", "b", None], [0, 1, 1]) == ["a", "b"]
    with pytest.raises(AggregateFailed, match="has no merge="):
        merged(aggregate, ["a", "b"])


def broken(value, other):
    raise ZeroDivisionError(value, other)


def test_the_error_names_the_function_that_raised():
    with pytest.raises(AggregateFailed, match=r"broken raised ZeroDivisionError: \(0, 7\)"):
        merged(combiner(0, int, broken, type=int), [7])
    aggregate = reducer(0, broken, type=int)
    with pytest.raises(AggregateFailed, match="broken raised ZeroDivisionError"):
        aggregate.reduced(pa.array([7]), [[1]])


@pytest.mark.parametrize(
    ("hint", "zero", "made"),
    [
        (int, 0, 1.5),
        (int, 0, "x"),
        (float, 0.0, True),
        (list[int], [], [1.5]),
        (Span, Span(low=0, high=0), {"low": 1, "high": 2.5}),
        (dict[str, int], {}, {"a": 0.5}),
        (date, date(2026, 1, 1), datetime(2026, 1, 1, 12, tzinfo=UTC)),
    ],
)
def test_a_value_that_would_be_cut_down_is_refused(hint, zero, made):
    """It would be stored as another than the function made."""
    stepping = reducer(zero, lambda *_: made, type=hint, merge=lambda *_: made)
    with pytest.raises(AggregateFailed, match="does not fit"):
        stepping.reduced(pa.array([None], stepping.type), [["row"]])
    with pytest.raises(AggregateFailed, match="does not fit"):
        merged(stepping, [zero, zero])
    with pytest.raises(AggregateFailed, match="does not fit"):
        merged(combiner(zero, lambda row: row, lambda *_: made, type=hint), [zero])
    with pytest.raises(InvalidTopology, match="expected a value of type"):
        reducer(made, lambda *_: made, type=hint)


def test_parts_of_a_value_may_be_null_in_every_store():
    assert type_of(Span, "") == pa.struct([("low", pa.int64()), ("high", pa.int64())])
    assert type_of(list[int], "") == pa.list_(pa.field("element", pa.int64()))
    maps = combiner({}, dict, lambda a, b: a | b, type=dict[str, int])
    assert merged(maps, [{"a": 1}, {"b": 2}]) == [[("a", 1), ("b", 2)]]


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: total("x", type=str), r"total\('x'\), type: found <class 'str'>"),
        (lambda: total("x", type=set), r"total\('x'\)\.type: found <class 'set'>"),
        (lambda: least("x", type=bool), r"least\('x'\), type: found <class 'bool'>"),
        *(
            (lambda hint=hint: most("x", type=hint), r"most\('x'\), type: found")
            for hint in [list[int], pa.duration("s"), pa.string_view(), pa.decimal32(5, 2)]
        ),
        (lambda: combiner("a", len, max, type=int), "zero: found 'a', expected a value of type"),
        (lambda: combiner(None, len, max, type=int), "zero: found None"),
        (lambda: combiner(0, "one", max, type=int), "found 'one', expected a function"),
        (lambda: reducer(0, max, type=int, merge=3), "found 3, expected a function"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(make, found):
    with pytest.raises(InvalidTopology, match=found):
        make()
