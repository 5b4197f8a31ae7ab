from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest

from topology.errors import InvalidSchema
from topology.schema import schema_of


class Place(TypedDict):
    code: str
    height: float | None


class Everything(TypedDict):
    text: str
    number: int
    real: float
    flag: bool
    raw: bytes
    moment: datetime
    day: date
    price: Decimal
    exact: Annotated[Decimal, pa.decimal128(10, 2)]
    kind: Literal["a", "b"]
    names: list[str]
    maybes: list[int | None]
    counts: dict[str, int]
    place: Place
    maybe: int | None
    absent: NotRequired[str]


def test_every_hint_has_its_column() -> None:
    place = pa.struct([pa.field("code", pa.string(), nullable=False), ("height", pa.float64())])
    expected = pa.schema(
        [
            pa.field("text", pa.string(), nullable=False),
            pa.field("number", pa.int64(), nullable=False),
            pa.field("real", pa.float64(), nullable=False),
            pa.field("flag", pa.bool_(), nullable=False),
            pa.field("raw", pa.binary(), nullable=False),
            pa.field("moment", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            pa.field("price", pa.decimal128(38, 18), nullable=False),
            pa.field("exact", pa.decimal128(10, 2), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field(
                "names", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False
            ),
            pa.field(
                "maybes", pa.list_(pa.field("element", pa.int64(), nullable=True)), nullable=False
            ),
            pa.field(
                "counts",
                pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
                nullable=False,
            ),
            pa.field("place", place, nullable=False),
            pa.field("maybe", pa.int64()),
            pa.field("absent", pa.string()),
        ]
    )
    assert schema_of(Everything) == expected


def test_a_dataclass_and_a_struct_give_the_schema_of_the_same_typed_dict() -> None:
    @dataclass
    class Row:
        code: str
        height: float | None

    class Struct(msgspec.Struct):
        code: str
        height: float | None

    assert schema_of(Row) == schema_of(Struct) == schema_of(Place)


def test_a_pyarrow_schema_is_taken_as_it_is() -> None:
    schema = pa.schema([("a", pa.uint8())])
    assert schema_of(schema) is schema


class Wide(TypedDict):
    value: int | str


class Odd(TypedDict):
    value: list[complex]


class Endless(TypedDict):
    child: "Endless | None"


class Misspelt(TypedDict):
    value: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class Empty(TypedDict):
    pass


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Wide, ["Wide.value", "int | str", "one type"]),
        (Odd, ["Odd.value", "complex", "expected str, int"]),
        (Endless, ["Endless.child", "within itself"]),
        (Misspelt, ["Misspelt", "Nowhere"]),
        (Empty, ["no column"]),
        (int, ["<class 'int'>", "TypedDict"]),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), ["twice"]),
    ],
)
def test_what_is_no_schema_is_refused_by_name(source: Any, words: list[str]) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema_of(source)
    assert all(word in str(caught.value) for word in words)
