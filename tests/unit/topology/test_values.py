from collections import defaultdict
from dataclasses import make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from math import inf
from typing import Annotated, Literal, NotRequired, TypedDict, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pydantic
import pytest

from topology.errors import InvalidSchema
from topology.schema import schema_of
from topology.values import cast, converted

ZONE = timezone(timedelta(hours=2))
MOMENT = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - without a zone, that is the case
WHOLE = pa.field("n", pa.int64(), nullable=False)
POINT = pa.struct([("x", pa.int64()), ("y", pa.float32())])

KEPT = [
    (pa.int64(), 5, 5),
    (pa.int64(), 5.0, 5),
    (pa.int8(), Decimal(5), 5),
    (pa.int32(), np.int64(5), 5),
    (pa.float64(), 5, 5.0),
    (pa.float64(), 2**53 + 1, 2.0**53),
    (pa.float64(), np.int64(2**53 + 1), 2.0**53),
    (pa.float64(), -(2**63) - 1, -(2.0**63)),
    (pa.float64(), 10**30, 1e30),
    (pa.float64(), np.uint64(2**64 - 5), 2.0**64),
    (pa.float32(), np.uint64(2**64 - 5), 2.0**64),
    (pa.int64(), 2.0**53 - 1, 2**53 - 1),
    (pa.float64(), inf, inf),
    (pa.float32(), -(2**24) - 1, -(2.0**24)),
    (pa.float16(), 2049, 2048.0),
    (pa.float32(), -inf, -inf),
    (pa.float32(), 0.5, 0.5),
    (pa.bool_(), np.bool_(True), True),  # noqa: FBT003 - a value like any other
    (pa.string(), b"a", "a"),
    (pa.binary(), "a", b"a"),
    (pa.decimal128(10, 2), 5, Decimal("5.00")),
    (pa.decimal128(10, 2), Decimal("1.5"), Decimal("1.50")),
    (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=UTC), MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("us", "UTC"), MOMENT, MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("us"), MOMENT, MOMENT),
    (pa.timestamp("us"), np.datetime64("2026-01-02T03:04:05", "us"), MOMENT),
    (pa.date32(), date(1, 1, 1), date(1, 1, 1)),
    (pa.date64(), date(2026, 1, 2), date(2026, 1, 2)),
    (pa.time32("ms"), time(1, 2, 3, 4_000), time(1, 2, 3, 4_000)),
    (pa.duration("ms"), timedelta(days=1, milliseconds=1), timedelta(days=1, milliseconds=1)),
    (POINT, {"x": 1}, {"x": 1, "y": None}),
    (POINT, (1, 0.5), {"x": 1, "y": 0.5}),
    (POINT, [("x", 1), ("y", 0.5)], {"x": 1, "y": 0.5}),
    (POINT, None, None),
    (pa.list_(pa.int64()), (1, None), [1, None]),
    (pa.list_(POINT), [{"x": 1}], [{"x": 1, "y": None}]),
    (pa.map_(pa.string(), pa.int64()), {"a": 1.0}, [("a", 1)]),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", 2.0)], [("a", 1), ("b", 2)]),
    (pa.map_(pa.string(), pa.int64()), [{"key": "b", "value": 2}], [("b", 2)]),
    (pa.dictionary(pa.int32(), pa.string()), "a", "a"),
    (pa.int64(), pa.scalar(5), 5),
    (pa.timestamp("us"), pa.scalar(MOMENT), MOMENT),
    (pa.list_(pa.dictionary(pa.int32(), pa.string())), [pa.scalar("a")], ["a"]),
    (pa.struct([("k", pa.dictionary(pa.int32(), pa.string()))]), {"k": pa.scalar("a")}, {"k": "a"}),
    (POINT, defaultdict(int, x=1), {"x": 1, "y": None}),
]

LOST = [
    (pa.int64(), 1.5),
    (pa.int64(), Decimal("1.5")),
    (pa.int64(), True),
    (pa.int64(), np.bool_(True)),  # noqa: FBT003
    (pa.int64(), "5"),
    (pa.dictionary(pa.int8(), pa.int64()), 1.5),
    (pa.list_(pa.string()), "ab"),
    (pa.list_(pa.uint8()), b"ab"),
    (POINT, ""),
    (pa.float64(), True),
    (pa.float64(), 10**400),
    (pa.int64(), 2.0**53),
    (pa.uint64(), np.float64(2.0**63)),
    (pa.float64(), Decimal("0.1")),
    (pa.float32(), 10**40),
    (pa.float16(), 70_000),
    (pa.float32(), 1e40),
    (pa.float16(), 70_000.0),
    (pa.bool_(), 1),
    (pa.string(), 5),
    (pa.string(), b"\xff"),
    (pa.decimal128(10, 2), 1.5),
    (pa.decimal128(10, 2), Decimal("1.234")),
    (pa.decimal128(10, 2), True),
    (pa.timestamp("us"), MOMENT.replace(tzinfo=ZONE)),
    (pa.timestamp("us"), 5),
    (pa.timestamp("us", "UTC"), 5.0),
    (pa.timestamp("us", "UTC"), date(2026, 1, 2)),
    (pa.timestamp("s"), MOMENT.replace(microsecond=1)),
    (pa.timestamp("s"), pa.scalar(2**40, pa.timestamp("s"))),
    (pa.timestamp("ns"), date.max),
    (pa.date32(), 20260101),
    (pa.date32(), MOMENT),
    (pa.date64(), MOMENT),
    (pa.date32(), pa.scalar(20260101, pa.date32())),
    (pa.time64("us"), 5),
    (pa.time64("us"), time(1, tzinfo=ZONE)),
    (pa.time32("s"), time(1, 2, 3, 4)),
    (pa.duration("us"), 5),
    (pa.duration("s"), timedelta(microseconds=5)),
    (POINT, {"x": 1.9}),
    (POINT, {"x": 1, "typo": 5}),
    (POINT, {"y": 1e40}),
    (POINT, (1.5, 0.5)),
    (POINT, [("x", 1), ("typo", 5)]),
    (pa.list_(pa.int64()), [2.7]),
    (pa.list_(pa.int64(), 1), [2.7]),
    (pa.list_(pa.list_(POINT)), [[{"x": 1}], [{"x": 2}, {"x": 2.5}]]),
    (pa.map_(pa.string(), pa.int64()), {"a": 1.5}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", 1.5)]),
    (pa.map_(pa.date32(), pa.int64()), {5: 1}),
    (pa.struct([("at", pa.list_(pa.timestamp("ms")))]), {"at": [5]}),
]


@pytest.mark.parametrize(
    ("kind", "value"), [(WHOLE.type, None), (pa.struct([WHOLE]), {}), (pa.list_(WHOLE), [None])]
)
def test_misplaced_null_is_refused_at_any_depth(kind, value):
    with pytest.raises(ValueError, match="is null"):
        converted([value], pa.field("c", kind, nullable=False))


@pytest.mark.parametrize(("kind", "value", "kept"), KEPT)
def test_what_a_column_keeps_its_parts_keep(kind, value, kept):
    for wrapped, put, got in _nested(kind, value, kept):
        assert converted([None, put], pa.field("c", wrapped)).to_pylist() == [None, got]


@pytest.mark.parametrize(("kind", "value"), LOST)
def test_what_a_column_refuses_its_parts_refuse(kind, value):
    for wrapped, put, _ in _nested(kind, value, None):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            converted([None, put], pa.field("c", wrapped))


def _nested(kind, value, kept):
    """A type and a value as a part of others: the type, the value and what is kept of it."""
    two = pa.struct([("n", pa.int64()), ("v", kind)])
    by_text = pa.map_(pa.string(), kind)
    return [
        (pa.list_(kind), [value, None], [kept, None]),
        (pa.list_(kind, 2), (None, value), [None, kept]),
        (two, {"n": 1, "v": value}, {"n": 1, "v": kept}),
        (two, {"v": value}, {"n": None, "v": kept}),
        (two, (None, value), {"n": None, "v": kept}),
        (pa.list_(two), [{}, {"v": value}], [{"n": None, "v": None}, {"n": None, "v": kept}]),
        (by_text, {"a": None, "b": value}, [("a", None), ("b", kept)]),
        (by_text, [("a", value), ("b", None)], [("a", kept), ("b", None)]),
        (by_text, [{"key": "b", "value": value}], [("b", kept)]),
    ]


EPOCH_NS = 1_767_322_800_000_000_000

CAST = [
    (pa.array([5], pa.int8()), pa.int64(), 5),
    (pa.array([5]), pa.float32(), 5.0),
    (pa.array([{"x": 2**53 + 1}]), pa.struct([("x", pa.float64())]), {"x": 2.0**53}),
    (pa.array([[2049]]), pa.list_(pa.float16()), [2048.0]),
    (pa.array([Decimal("5.50")]), pa.decimal128(10, 1), Decimal("5.5")),
    (pa.array(["a"]), pa.large_string(), "a"),
    (pa.array(["a"]).dictionary_encode(), pa.string(), "a"),
    (pa.array([MOMENT]), pa.timestamp("s"), MOMENT),
    (pa.array([date.max]), pa.date64(), date.max),
    (pa.array([{"x": 1}]), POINT, {"x": 1, "y": None}),
    (pa.array([[1.0]]), pa.list_(pa.int64()), [1]),
    (pa.array([None, None]), pa.int64(), None),
    (pa.array([None, None], pa.string()), pa.int64(), None),
]

NOT_CAST = [
    (pa.array(["0.5"]), pa.float64()),
    (pa.array([10**9]), pa.decimal128(10, 2)),
    (pa.array([date.max]), pa.timestamp("us")),
    (pa.array([MOMENT], pa.timestamp("us", "UTC")), pa.timestamp("us")),
    (pa.array([MOMENT.replace(microsecond=1)]), pa.timestamp("ms")),
    (pa.array([EPOCH_NS], pa.timestamp("ms")), pa.timestamp("us")),
    (pa.array([EPOCH_NS], pa.timestamp("us")), pa.timestamp("us")),
    (pa.array([20260101], pa.date32()), pa.date32()),
    (pa.array([-(2**30) * 86_400_000]).view(pa.date64()), pa.date64()),
    (pa.array([[20260101]], pa.list_(pa.date32())), pa.list_(pa.date32())),
    (pa.array([20260101], pa.date32()).dictionary_encode(), pa.date32()),
    (pa.array([{"x": 1, "typo": 5}]), POINT),
    (pa.array([{"x": 1.9}]), POINT),
    (pa.array([[True]]), pa.list_(pa.int64())),
    (pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string())), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("column", "kind", "kept"), CAST)
def test_a_column_that_the_other_keeps_is_taken(column, kind, kept):
    array = cast(column, pa.field("c", kind))
    assert array.type == kind
    assert array[0].as_py() == kept


@pytest.mark.parametrize(("column", "kind"), NOT_CAST)
def test_a_column_that_would_become_another_is_refused(column, kind):
    with pytest.raises((ValueError, TypeError, NotImplementedError)):
        cast(column, pa.field("c", kind))


def test_values_and_columns_follow_the_same_rules():
    """What a value may become as a value, it may become in a column of its own type."""
    looked_at = 0
    for kind, value, *kept in [*KEPT, *LOST]:
        try:
            column = pa.array([value])
        except (pa.ArrowException, OverflowError):
            continue
        if column.type.equals(kind) or isinstance(value, tuple | list | np.ndarray | dict):
            continue
        looked_at += 1
        if kept:
            assert cast(column, pa.field("c", kind)).to_pylist() == kept
            continue
        with pytest.raises((ValueError, TypeError, NotImplementedError)):
            cast(column, pa.field("c", kind))
    assert looked_at > 40


def test_a_scalar_of_pyarrows_in_a_dictionary_does_not_end_the_process():
    texts, numbers = pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.int64())
    assert converted(["a", pa.scalar("b")], pa.field("c", texts)).to_pylist() == ["a", "b"]
    assert converted([1, pa.scalar(2)], pa.field("c", numbers)).to_pylist() == [1, 2]
    for value in (pa.scalar("b"), pa.scalar(1.5)):
        with pytest.raises((ValueError, TypeError)):
            converted([1, value], pa.field("c", numbers))


class Place(TypedDict):
    code: str
    height: float | None


needed = partial(pa.field, nullable=False)
NULLABLE = [
    ("maybe", int | None, pa.int64()),
    ("absent", NotRequired[str], pa.string()),
]
REQUIRED = [
    ("text", str, pa.string()),
    ("number", int, pa.int64()),
    ("real", float, pa.float64()),
    ("flag", bool, pa.bool_()),
    ("raw", bytes, pa.binary()),
    ("moment", datetime, pa.timestamp("us", tz="UTC")),
    ("day", date, pa.date32()),
    ("price", Decimal, pa.decimal128(38, 18)),
    ("exact", Annotated[Decimal, pa.decimal128(10, 2)], pa.decimal128(10, 2)),
    ("kind", Literal["a", "b"], pa.string()),
    ("names", list[str], pa.list_(needed("element", pa.string()))),
    ("maybes", list[int | None], pa.list_(pa.field("element", pa.int64()))),
    ("counts", dict[str, int], pa.map_(pa.string(), needed("value", pa.int64()))),
    ("place", Place, pa.struct([needed("code", pa.string()), ("height", pa.float64())])),
]


def test_every_hint_has_its_column():
    hints = {name: hint for name, hint, _ in [*REQUIRED, *NULLABLE]}
    required = [needed(name, kind) for name, _, kind in REQUIRED]
    nullable = [pa.field(name, kind) for name, _, kind in NULLABLE]
    assert schema_of(TypedDict("Everything", hints)) == pa.schema(required + nullable)


def test_a_dataclass_and_a_struct_give_the_schema_of_the_same_typed_dict():
    fields = get_type_hints(Place)
    row = make_dataclass("Row", fields.items())
    struct = msgspec.defstruct("Struct", fields.items())
    model = pydantic.create_model("Model", **fields)
    assert schema_of(row) == schema_of(struct) == schema_of(model) == schema_of(Place)


def test_a_pyarrow_schema_is_taken_as_it_is():
    schema = pa.schema([("a", pa.uint8())])
    assert schema_of(schema) is schema


class Endless(TypedDict):
    child: "Endless | None"


class Misspelt(TypedDict):
    value: "Nowhere"  # noqa: F821


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (TypedDict("Wide", {"v": int | str}), ["Wide.v", "int | str", "one type"]),
        (TypedDict("Odd", {"v": list[complex]}), ["Odd.v", "complex", "expected str, int"]),
        (Endless, ["Endless.child", "within itself"]),
        (Misspelt, ["Misspelt", "Nowhere"]),
        (pa.schema([]), ["no column"]),
        (int, ["<class 'int'>", "TypedDict"]),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), ["twice"]),
    ],
)
def test_what_is_no_schema_is_refused_by_name(source, words):
    with pytest.raises(InvalidSchema) as caught:
        schema_of(source)
    assert all(word in str(caught.value) for word in words)
