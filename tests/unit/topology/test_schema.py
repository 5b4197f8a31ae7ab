from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Literal, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pydantic
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


def required(name, kind):
    return pa.field(name, kind, nullable=False)


def test_every_hint_has_its_column():
    place = pa.struct([required("code", pa.string()), ("height", pa.float64())])
    assert schema_of(Everything) == pa.schema(
        [
            required("text", pa.string()),
            required("number", pa.int64()),
            required("real", pa.float64()),
            required("flag", pa.bool_()),
            required("raw", pa.binary()),
            required("moment", pa.timestamp("us", tz="UTC")),
            required("day", pa.date32()),
            required("price", pa.decimal128(38, 18)),
            required("exact", pa.decimal128(10, 2)),
            required("kind", pa.string()),
            required("names", pa.list_(required("element", pa.string()))),
            required("maybes", pa.list_(pa.field("element", pa.int64()))),
            required("counts", pa.map_(pa.string(), required("value", pa.int64()))),
            required("place", place),
            pa.field("maybe", pa.int64()),
            pa.field("absent", pa.string()),
        ]
    )


def test_a_dataclass_and_a_struct_give_the_schema_of_the_same_typed_dict():
    @dataclass
    class Row:
        code: str
        height: float | None

    class Struct(msgspec.Struct):
        code: str
        height: float | None

    class Model(pydantic.BaseModel):
        code: str
        height: float | None

    assert schema_of(Row) == schema_of(Struct) == schema_of(Model) == schema_of(Place)


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
