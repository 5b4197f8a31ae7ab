# ruff: noqa: S608 - these are the statements
import pyarrow as pa
import pytest

from sinks.spark.sql.postgres import Statements, verdict

HOSTILE = 'a"; DROP TABLE x; --'
QUOTED = '"a""; DROP TABLE x; --"'
PLAIN = Statements("public", "orders", ["id", HOSTILE])
BY_KEY = Statements(
    "s", HOSTILE, ["id", HOSTILE, "gone"], ["id"], "gone", {"id": "bigint", HOSTILE: "x.y"}
)


def test_a_table_is_made_with_its_key_and_without_what_is_not_stored() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field(HOSTILE, pa.decimal128(9, 2)),
            pa.field("gone", pa.bool_()),
        ]
    )
    assert BY_KEY.create(schema) == (
        f'CREATE TABLE "s".{QUOTED} ("id" bigint NOT NULL, {QUOTED} numeric(9,2), '
        'PRIMARY KEY ("id"))'
    )
    assert PLAIN.create(schema.remove(2)) == (
        f'CREATE TABLE "public"."orders" ("id" bigint NOT NULL, {QUOTED} numeric(9,2))'
    )
    assert PLAIN.add_columns([schema.field(0), schema.field(1)]) == (
        'ALTER TABLE "public"."orders" ADD COLUMN IF NOT EXISTS "id" bigint, '
        f"ADD COLUMN IF NOT EXISTS {QUOTED} numeric(9,2)"
    )


def test_rows_are_sent_to_their_columns_by_name() -> None:
    assert PLAIN.copy == f'COPY "public"."orders" ("id", {QUOTED}) FROM STDIN'
    assert BY_KEY.copy_temporary == (
        'COPY pg_temp."headrace_rows" ("row", "c0", "c1", "c2") FROM STDIN'
    )
    assert BY_KEY.make_temporary == (
        'CREATE TEMPORARY TABLE "headrace_rows" ON COMMIT DROP AS SELECT 0::bigint AS "row", '
        f't."id" AS "c0", t.{QUOTED} AS "c1", false AS "c2" FROM "s".{QUOTED} AS t WITH NO DATA'
    )


def test_the_last_row_of_a_key_replaces_or_deletes() -> None:
    last = 'SELECT DISTINCT ON ("c0") * FROM pg_temp."headrace_rows" ORDER BY "c0", "row" DESC'
    assert BY_KEY.delete == (
        f'DELETE FROM "s".{QUOTED} AS t USING ({last}) AS r WHERE t."id" = r."c0" AND r."c2"'
    )
    assert BY_KEY.upsert == (
        f'INSERT INTO "s".{QUOTED} ("id", {QUOTED}) SELECT r."c0", r."c1" FROM ({last}) AS r '
        f'WHERE r."c2" IS NOT TRUE ON CONFLICT ("id") DO UPDATE SET {QUOTED} = excluded.{QUOTED}'
    )
    only_key = Statements("s", "t", ["id"], ["id"])
    assert only_key.delete is None
    assert only_key.upsert.endswith('ON CONFLICT ("id") DO NOTHING')


def test_rows_are_put_in_place_one_by_one_whatever_their_names_are() -> None:
    assert BY_KEY.make_each == (
        'CREATE TEMPORARY TABLE "headrace_each" ("row" bigint GENERATED ALWAYS AS IDENTITY PRIMARY '
        'KEY, "number" text, "c0" text, "c1" text, "c2" text, "said" text) ON COMMIT DROP'
    )
    assert BY_KEY.copy_each == (
        'COPY pg_temp."headrace_each" ("number", "c0", "c1", "c2") FROM STDIN'
    )
    assert (
        f'IF r."c2"::boolean THEN DELETE FROM "s".{QUOTED} AS t WHERE t."id" = r."c0"::bigint; '
        f'ELSE INSERT INTO "s".{QUOTED} ("id", {QUOTED}) VALUES (r."c0"::bigint, r."c1"::x.y) '
        f'ON CONFLICT ("id") DO UPDATE SET {QUOTED} = excluded.{QUOTED}; END IF;'
    ) in BY_KEY.put_each
    ends = Statements("s", "$headrace$", ["x"], casts={"x": "text"}).put_each
    assert ends.startswith("DO $xheadrace$DECLARE")
    assert ends.endswith("END$xheadrace$")


def test_lines_are_locked_in_one_order() -> None:
    assert 'ORDER BY s."line" COLLATE "C" FOR UPDATE OF s)' in PLAIN.lines(locked=True)
    assert "FOR UPDATE" not in PLAIN.lines(locked=False)
    assert PLAIN.lines_table == '"public"."headrace_transactions"'


@pytest.mark.parametrize(
    ("state", "means"),
    [
        ("23505", "refused"),
        ("22001", "refused"),
        ("54000", "refused"),
        ("P0001", "refused"),
        ("44000", "refused"),
        ("SH013", "refused"),  # a trigger's own
        ("45000", "refused"),
        ("38001", "refused"),
        ("99999", "passing"),  # the driver's
        ("08S01", "passing"),
        ("58030", "passing"),
        ("XX000", "passing"),
        ("22P04", "changed"),
        ("55P03", "busy"),
        ("57014", "busy"),
        ("40P01", "busy"),
        ("42703", "changed"),
        ("42501", "changed"),
        ("3F000", "changed"),
        ("57P01", "passing"),
        ("08006", "passing"),
        ("53100", "passing"),
        ("25006", "passing"),
    ],
)
def test_an_error_means_what_its_class_says(state: str, means: str) -> None:
    assert verdict(state) == means
