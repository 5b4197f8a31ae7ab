"""A refused row is known by its record, and its index among the record's rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.spark_engine.range_buffer import RowSource, again, source_of
from service.spark_engine.task import EVERY_ROW
from topology.sink import Batch, Share


def group(*lines: tuple[str, list[int]]) -> Batch:
    """A row of each of these offsets."""
    shares = tuple(Share(line, 1, 1, 1, 0, 100, "", len(of)) for line, of in lines)
    offsets = np.array([offset for _line, of in lines for offset in of], np.int64)
    return Batch(1, [[None] * len(offsets)], len(offsets), shares, offsets)


def test_rows_are_counted_within_their_record() -> None:
    asked = group(("a", [1, 1, 1, 2, 2]), ("empty", []), ("b", [2, 2, 3]))
    assert [source_of(asked, row) for row in (2, 3, 6, 7)] == [
        RowSource("a", 1, 2),
        RowSource("a", 2, 0),
        RowSource("b", 2, 1),
        RowSource("b", 3, 0),
    ]


@given(st.lists(st.lists(st.integers(0, 5), max_size=12).map(sorted), min_size=1, max_size=4))
def test_every_row_comes_from_another_place(offsets: list[list[int]]) -> None:
    asked = group(*((str(line), of) for line, of in enumerate(offsets)))
    found = [source_of(asked, row) for row in range(asked.num_rows)]
    assert len(set(found)) == asked.num_rows
    assert [(each.line, each.offset) for each in found] == [
        (str(line), offset) for line, of in enumerate(offsets) for offset in of
    ]


def test_a_record_of_which_the_rest_is_refused_too_has_no_row_left() -> None:
    assert again(None, {1: "too long"}) == {1: "too long"}
    whole = again({1: "too long"}, {0: "too wide"})
    assert whole == {EVERY_ROW: "too wide"}
    assert again(whole, {0: "null"}) == {EVERY_ROW: "null"}
