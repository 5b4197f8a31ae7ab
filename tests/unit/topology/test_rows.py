"""Rows as columns: no column is lost, no row is, and typed records are rows too."""

import subprocess
from collections import defaultdict
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Record, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test
from topology.vectorised import as_row, columns_of_values

ALLOWED = "a mapping, a dataclass or a msgspec.Struct is allowed"


class Flight(msgspec.Struct, rename="camel"):
    flight_number: int
    gate: str | None = None


@dataclass
class Plain:
    n: int
    raw: bytes = b"\0"


def rows_by_place(columns):
    return {
        place: row
        for batch, places in columns.batches
        for place, row in zip(places.tolist(), batch.to_pylist(), strict=True)
    }


def test_every_column_that_one_row_has_is_there_and_null_where_another_has_it_not():
    columns = columns_of_values([{"a": 1}, {"a": 2, "b": 3}, {}, {"b": 4}])
    ((batch, places),) = columns.batches
    assert batch.to_pydict() == {"a": [1, 2, None, None], "b": [None, 3, None, 4]}
    assert places.tolist() == [0, 1, 2, 3]
    assert columns.refused == {}


def test_typed_records_are_rows_with_the_columns_that_a_sink_gives_them():
    columns = columns_of_values([Flight(7), Plain(1), {"n": 2}])
    assert rows_by_place(columns) == {
        0: {"flightNumber": 7, "gate": None, "n": None, "raw": None},
        1: {"flightNumber": None, "gate": None, "n": 1, "raw": b"\0"},
        2: {"flightNumber": None, "gate": None, "n": 2, "raw": None},
    }


def test_any_mapping_is_a_row_and_asking_for_its_columns_does_not_change_it():
    counts = defaultdict(int, a=1)
    columns = columns_of_values([counts, MappingProxyType({"b": 2})])
    assert rows_by_place(columns) == {0: {"a": 1, "b": None}, 1: {"a": None, "b": 2}}
    assert counts == {"a": 1}


@pytest.mark.parametrize(
    "value", [7, "text", [{"a": 1}], ("a", 1), pa.scalar(1), Record(b"1", Plain(1)), subprocess]
)
def test_what_is_no_row_is_refused_alone(value):
    assert as_row(value) is None
    columns = columns_of_values([{"n": 1}, value, {"n": 2}])
    assert rows_by_place(columns) == {0: {"n": 1}, 2: {"n": 2}}
    assert columns.refused == {1: ALLOWED}


def test_rows_without_any_column_are_refused_and_not_lost():
    columns = columns_of_values([{}, {}])
    assert columns.batches == []
    assert columns.refused == {0: "it is empty", 1: "it is empty"}


def test_rows_of_types_that_do_not_go_together_stand_in_batches_of_their_own():
    columns = columns_of_values([{"n": 1}, {"n": "two"}, {"n": object()}, {"n": 4}])
    assert rows_by_place(columns) == {0: {"n": 1}, 1: {"n": "two"}, 3: {"n": 4}}
    assert list(columns.refused) == [2]
    assert "object" in columns.refused[2]


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 9) | st.text(max_size=2)),
        ),
        max_size=30,
    )
)
def test_each_value_is_a_row_once_with_all_that_it_has_or_is_refused(values):
    columns = columns_of_values(values)
    found = rows_by_place(columns)
    assert sorted([*found, *columns.refused]) == list(range(len(values)))
    for place, row in found.items():
        assert {name: cell for name, cell in row.items() if cell is not None} == values[place]


def test_a_vectorised_bolt_behind_typed_records_gives_rows_and_names_itself_when_it_cannot():
    @bolt
    def read(record):
        number = int(record.value)
        return Flight(number, "A" if number else None) if number < 9 else number

    @bolt(vectorised=True)
    def columns(batch):
        return batch

    topology = Topology("typed")
    topology.source("in").then(read).then(columns).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"0", b"9", b"1")
        assert kit.rows == [{"flightNumber": 0, "gate": None}, {"flightNumber": 1, "gate": "A"}]
        (letter,) = kit.rejected
        assert letter.reason == f"bolt 'columns' takes columns, and a int gives none: {ALLOWED}"


def test_one_value_with_thousands_of_members_does_not_give_them_to_all_the_others():
    wide = {"n": 1000} | {f"k{number}": number for number in range(20_000)}
    values = [{"n": number} for number in range(1000)] + [wide] + [{"n": 1001}] * 999
    columns = columns_of_values(values)
    assert columns.refused == {}
    assert sum(batch.num_rows for batch, _ in columns.batches) == len(values)
    assert sum(batch.num_rows * batch.num_columns for batch, _ in columns.batches) < 2_000_000
    places = np.concatenate([places for _, places in columns.batches])
    assert sorted(places.tolist()) == list(range(len(values)))
    (found,) = [batch for batch, _ in columns.batches if batch.num_columns > 1]
    assert found.num_rows <= 50
    assert wide in [
        {name: value for name, value in row.items() if value is not None}
        for row in found.to_pylist()
    ]
