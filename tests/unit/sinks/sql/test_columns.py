import pyarrow as pa
import pytest

from sinks.spark.sql.columns import Column, Room, room_for, sql_type

BOUND = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "smallint"),
    (pa.uint8(), "smallint"),
    (pa.int16(), "smallint"),
    (pa.uint16(), "integer"),
    (pa.int32(), "integer"),
    (pa.uint32(), "bigint"),
    (pa.int64(), "bigint"),
    (pa.uint64(), "numeric(20)"),
    (pa.float16(), "real"),
    (pa.float32(), "real"),
    (pa.float64(), "double precision"),
    (pa.string(), "text"),
    (pa.large_string(), "text"),
    (pa.dictionary(pa.int8(), pa.string()), "text"),
    (pa.binary(), "bytea"),
    (pa.binary(4), "bytea"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    (pa.timestamp("ns"), "timestamp without time zone"),
    (pa.timestamp("us", tz="Europe/Berlin"), "timestamp with time zone"),
    (pa.time32("s"), "time without time zone"),
    (pa.time64("ns"), "time without time zone"),
    (pa.decimal128(10, 2), "numeric(10,2)"),
    (pa.decimal256(76, 38), "numeric(76,38)"),
    (pa.decimal128(10, -2), "numeric"),
    (pa.list_(pa.int64()), "jsonb"),
    (pa.map_(pa.string(), pa.date32()), "jsonb"),
    (pa.struct([("a", pa.list_(pa.binary()))]), "jsonb"),
]


@pytest.mark.parametrize(("kind", "made"), BOUND, ids=str)
def test_each_type_becomes_one_of_postgresqls(kind: pa.DataType, made: str) -> None:
    assert sql_type(kind) == made


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.duration("s"), pa.month_day_nano_interval(), pa.list_(pa.duration("s"))],
    ids=str,
)
def test_a_type_that_postgresql_has_not_is_none(kind: pa.DataType) -> None:
    assert sql_type(kind) is None


def column(kind: str, **more: object) -> Column:
    return Column("x", kind, **more)  # type: ignore[arg-type]


NUMERIC_9_2 = column("numeric", precision=9, scale=2)


@pytest.mark.parametrize(
    ("kind", "there", "room"),
    [
        (pa.int16(), column("bigint", precision=64), Room.ALL),
        (pa.int64(), column("bigint", precision=64), Room.ALL),
        (pa.int64(), column("integer", precision=32), Room.NONE),
        (pa.int64(), column("numeric"), Room.ALL),
        (pa.int32(), column("numeric", precision=10, scale=0), Room.ALL),
        (pa.int32(), column("numeric", precision=9, scale=0), Room.SOME),
        (pa.uint64(), column("numeric", precision=20, scale=0), Room.ALL),
        (pa.uint64(), column("bigint"), Room.NONE),
        (pa.decimal128(9, 2), NUMERIC_9_2, Room.ALL),
        (pa.decimal128(10, 2), NUMERIC_9_2, Room.SOME),
        (pa.decimal128(9, 3), NUMERIC_9_2, Room.NONE),
        (pa.float32(), column("double precision"), Room.NONE),
        (pa.float64(), column("real"), Room.NONE),
        (pa.string(), column("character varying"), Room.ALL),
        (pa.string(), column("character varying", length=5), Room.SOME),
        (pa.string(), column("character", length=5), Room.NONE),
        (pa.string(), column("uuid"), Room.SOME),
        (pa.string(), column("jsonb"), Room.SOME),
        (pa.string(), column("USER-DEFINED", udt="mood", is_enum=True), Room.SOME),
        (pa.string(), column("USER-DEFINED", udt="point3d"), Room.NONE),
        (pa.string(), column("integer"), Room.NONE),
        (pa.int64(), column("text"), Room.NONE),
        (pa.timestamp("us"), column("timestamp without time zone", fraction=6), Room.ALL),
        (pa.timestamp("us"), column("timestamp without time zone", fraction=3), Room.NONE),
        (pa.timestamp("us"), column("timestamp with time zone", fraction=6), Room.NONE),
        (pa.date32(), column("date", fraction=0), Room.ALL),
        (pa.list_(pa.int64()), column("json"), Room.ALL),
        (pa.list_(pa.int64()), column("ARRAY", udt="_int8"), Room.NONE),
        (pa.int64(), column("bigint", is_domain=True), Room.SOME),
        (pa.int64(), column("integer", is_domain=True), Room.NONE),
    ],
    ids=str,
)
def test_a_column_that_is_there_has_room_for_all_values_for_some_or_for_none(
    kind: pa.DataType, there: Column, room: Room
) -> None:
    assert room_for(kind, there) is room


@pytest.mark.parametrize(("kind", "made"), BOUND, ids=str)
def test_a_column_that_was_made_for_a_type_has_room_for_it(kind: pa.DataType, made: str) -> None:
    name, _, digits = made.rstrip(")").partition("(")
    precision, _, scale = digits.partition(",")
    there = Column(
        "x",
        name,
        precision=int(precision) if digits else None,
        scale=int(scale or 0) if digits else None,
        fraction=6 if name.startswith("time") else None,
    )
    assert room_for(kind, there) is Room.ALL


@pytest.mark.parametrize(
    ("there", "shown"),
    [
        (NUMERIC_9_2, "numeric(9,2)"),
        (column("numeric"), "numeric"),
        (column("character varying", length=5), "character varying(5)"),
        (column("USER-DEFINED", udt="mood"), "mood"),
        (column("ARRAY", udt="_int8"), "_int8"),
        (column("time without time zone", fraction=0), "time without time zone with 0 digits"),
        (column("date", fraction=0), "date"),
    ],
    ids=str,
)
def test_a_type_is_shown_as_one_would_write_it(there: Column, shown: str) -> None:
    assert there.shown.startswith(shown)
