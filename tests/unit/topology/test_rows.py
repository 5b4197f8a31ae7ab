import subprocess
from collections import defaultdict
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Record
from topology.vectorised import as_row, columns_of_values


class Flight(msgspec.Struct, rename="camel"):
    flight_number: int
    gate: str | None = None


@dataclass
class Plain:
    n: int
    raw: bytes = b"\0"


class Parcel(pydantic.BaseModel):
    id: int
    raw: bytes = b"\0"


def rows_of(columns):
    return {
        index: {name: cell for name, cell in row.items() if cell is not None}
        for batch, indices in columns.batches
        for index, row in zip(indices.tolist(), batch.to_pylist(), strict=True)
    }


def test_typed_records_and_mappings_are_rows():
    counts = defaultdict(int, a=1)
    values = [Flight(7), Plain(1), counts, MappingProxyType({"b": 2}), Parcel(id=3)]
    columns = columns_of_values(values)
    assert rows_of(columns) == {
        0: {"flightNumber": 7},
        1: {"n": 1, "raw": b"\0"},
        2: {"a": 1},
        3: {"b": 2},
        4: {"id": 3, "raw": b"\0"},
    }
    assert counts == {"a": 1}


@pytest.mark.parametrize(
    "value", [7, "text", [{"a": 1}], ("a", 1), pa.scalar(1), Record(b"1", Plain(1)), subprocess]
)
def test_other_value_is_refused_alone(value):
    assert as_row(value) is None
    columns = columns_of_values([{"n": 1}, value, {"n": 2}])
    assert rows_of(columns) == {0: {"n": 1}, 2: {"n": 2}}
    said = columns.refused.pop(1)
    assert said.startswith("expected a mapping, a dataclass or a msgspec.Struct")
    assert ("flat_map" in said) == isinstance(value, list | tuple), "how to send each item"
    assert not columns.refused


def test_rows_without_columns_are_refused():
    columns = columns_of_values([{}, {}])
    assert (columns.batches, columns.refused) == ([], {0: "it is empty", 1: "it is empty"})


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.dictionaries(
                st.sampled_from("abc"), st.integers(0, 9) | st.text(max_size=2) | st.builds(object)
            ),
        ),
        max_size=30,
    )
)
def test_each_value_is_a_whole_row_once_or_refused(values):
    columns = columns_of_values(values)
    found = rows_of(columns)
    assert sorted([*found, *columns.refused]) == list(range(len(values)))
    assert all(row == values[index] for index, row in found.items())


def test_a_wide_row_does_not_widen_all_others():
    wide = {"n": 1000} | {f"k{number}": number for number in range(20_000)}
    values = [{"n": number} for number in range(1000)] + [wide] + [{"n": 1001}] * 999
    columns = columns_of_values(values)
    assert columns.refused == {}
    assert sum(batch.num_rows * batch.num_columns for batch, _ in columns.batches) < 2_000_000
    indices = np.concatenate([indices for _, indices in columns.batches])
    assert sorted(indices.tolist()) == list(range(len(values)))
    (found,) = [batch for batch, _ in columns.batches if batch.num_columns > 1]
    assert found.num_rows <= 50
    assert rows_of(columns)[1000] == wide
