import pyarrow as pa
import pytest

from sinks.spark.iceberg.schema import fields_of, required_places, shown, table_schema, tied
from topology.errors import InvalidSchema

NESTED = pa.schema(
    [
        ("n", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("pair", pa.list_(pa.int8(), 2)),
        ("large", pa.large_list(pa.binary())),
        ("prices", pa.map_(pa.string(), pa.decimal128(9, 2))),
        ("of", pa.struct([("a", pa.date32()), ("b", pa.list_(pa.struct([("c", pa.bool_())])))])),
        ("few", pa.dictionary(pa.int32(), pa.string())),
    ]
)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "int"),
        (pa.int64(), "long"),
        (pa.float32(), "float"),
        (pa.large_string(), "string"),
        (pa.large_binary(), "binary"),
        (pa.date32(), "date"),
        (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("s", tz="Europe/Berlin"), "timestamptz"),
        (pa.decimal128(38, 18), "decimal(38,18)"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (NESTED.field("of").type, "struct<a: date, b: list<struct<c: boolean>>>"),
        (NESTED.field("prices").type, "map<string, decimal(9,2)>"),
        (pa.struct([("b", pa.int64()), ("a", pa.int32())]), "struct<a: int, b: long>"),
    ],
)
def test_a_type_is_what_iceberg_calls_it(kind: pa.DataType, name: str) -> None:
    (field,) = table_schema(pa.schema([pa.field("x", kind, nullable=False)]))["fields"]
    assert shown(field["type"]) == name
    assert (field["name"], field["required"]) == ("x", False)


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.float16(),
        pa.null(),
        pa.time64("us"),
        pa.duration("s"),
        pa.date64(),
        pa.decimal256(50, 2),
        pa.decimal128(3, -2),
        pa.binary(4),
        pa.struct([]),
    ],
    ids=str,
)
def test_a_type_that_iceberg_has_not_is_refused_at_any_depth(kind: pa.DataType) -> None:
    for each, place in ((kind, "x"), (pa.list_(kind), "x"), (pa.struct([("y", kind)]), r"x\.y")):
        with pytest.raises(InvalidSchema, match=f"column '{place}': found .*; allowed are bool"):
            table_schema(pa.schema([("x", each)]))


def test_columns_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(InvalidSchema, match="columns 'a' and 'A' differ in case only"):
        table_schema(pa.schema([("a", pa.int64()), ("A", pa.int64())]))


def test_every_id_of_a_new_table_is_another_one() -> None:
    found: list[int] = []

    def collect(kind: object) -> None:
        if isinstance(kind, dict):
            ids = ("id", "element-id", "key-id", "value-id")
            found.extend(value for key, value in kind.items() if key in ids)
            for value in kind.values():
                collect(value)
        elif isinstance(kind, list):
            for value in kind:
                collect(value)

    collect(table_schema(NESTED))
    assert sorted(found) == list(range(1, len(found) + 1))


def test_the_ids_of_the_table_are_put_at_every_place() -> None:
    schema = tied(NESTED, fields_of(table_schema(NESTED)))
    assert schema.equals(NESTED)

    def number(field: "pa.Field[object]") -> int:
        assert field.metadata is not None
        return int(field.metadata[b"PARQUET:field_id"])

    fields = fields_of(table_schema(NESTED))
    for field in schema:
        assert number(field) == fields[field.name]["id"]
    tags, prices, of = (schema.field(name).type for name in ("tags", "prices", "of"))
    assert number(tags.value_field) == fields["tags"]["type"]["element-id"]
    assert number(prices.key_field) == fields["prices"]["type"]["key-id"]
    assert number(prices.item_field) == fields["prices"]["type"]["value-id"]
    within = fields["of"]["type"]["fields"][1]["type"]
    assert number(of.field(1).type.value_field) == within["element-id"]
    assert number(of.field(1).type.value_type.field(0)) == within["element"]["fields"][0]["id"]


def test_places_that_are_required_in_the_table_only_are_found_at_any_depth() -> None:
    schema = table_schema(NESTED)
    fields = fields_of(schema)
    fields["tags"]["type"]["element-required"] = True  # type: ignore[index]
    fields["of"]["type"]["fields"][0]["required"] = True  # type: ignore[index]

    def places(name: str, *, required: bool = False) -> list[str]:
        return required_places(NESTED.field(name), fields[name]["type"], name, required=required)

    assert places("n") == places("prices") == []
    assert places("n", required=True) == ["n"]
    assert places("tags") == ["tags[]"]
    assert places("of") == ["of.a"]
    strict = pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False)))
    assert required_places(strict, fields["tags"]["type"], "tags", required=False) == []
