"""A refused row is known by its record, and its place among the record's rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.spark_engine.refusals import EVERY_ROW, Origin, again, origins, origins_of, reason_of
from topology.sink import Batch, Share


def group(*lines: tuple[str, list[int]]) -> Batch:
    """A row of each of these offsets."""
    shares = tuple(Share(line, 1, 1, 1, 0, 100, "", len(of)) for line, of in lines)
    offsets = np.array([offset for _line, of in lines for offset in of], np.int64)
    return Batch(1, [[None] * len(offsets)], len(offsets), shares, offsets)


def test_rows_are_counted_within_their_record() -> None:
    asked = group(("a", [1, 2, 1, 2, 1]), ("empty", []), ("b", [2, 1, 2]))
    assert origins_of(asked, {4, 3, 7}) == {
        4: Origin("a", 1, 2),
        3: Origin("a", 2, 1),
        7: Origin("b", 2, 1),
    }
    assert dict(origins(asked, {"b": [2], "elsewhere": [1]})) == {
        5: Origin("b", 2, 0),
        7: Origin("b", 2, 1),
    }


@given(st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=4), st.data())
def test_a_row_that_is_found_again_by_where_it_comes_from_is_the_same(
    offsets: list[list[int]], data: st.DataObject
) -> None:
    asked = group(*((str(line), of) for line, of in enumerate(offsets)))
    rows = set(data.draw(st.lists(st.integers(0, asked.num_rows - 1)))) if asked.num_rows else set()
    found = origins_of(asked, rows)
    assert found.keys() == rows
    records: dict[str, set[int]] = {}
    for line, offset, _place in found.values():
        records.setdefault(line, set()).add(offset)
    refused = set(found.values())
    assert {row for row, of in origins(asked, records) if of in refused} == rows


def test_a_record_of_which_the_rest_is_refused_too_has_no_row_left() -> None:
    assert again(None, {1: "too long"}) == {1: "too long"}
    whole = again({1: "too long"}, {0: "too wide"})
    assert [reason_of(whole, place) for place in (0, 1, 2)] == ["too wide"] * 3
    assert reason_of({1: "too long"}, 0) is None
    assert again(whole, {0: "null"}) == {EVERY_ROW: "null"}
