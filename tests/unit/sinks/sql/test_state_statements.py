"""The statements that read a state."""

import pyarrow as pa

from sinks.spark.sql.state_statements import StateStatements

SCHEMA = pa.schema([('wo"rd', pa.string()), ("line", pa.string()), ("n", pa.int64())])
STATEMENTS = StateStatements('"s"."words"', SCHEMA, ['wo"rd', "line"])


def test_the_keys_go_through_a_table_of_the_transactions_own() -> None:
    assert STATEMENTS.make_keys == (
        'CREATE TEMPORARY TABLE "headrace_keys" ON COMMIT DROP AS SELECT t."wo""rd" AS "c0", '
        't."line" AS "c1" FROM "s"."words" AS t WITH NO DATA'
    )
    assert STATEMENTS.copy_keys == 'COPY pg_temp."headrace_keys" ("c0", "c1") FROM STDIN'


def test_the_rows_of_the_keys_are_written_once_each_and_so_are_all() -> None:
    every = 'SELECT t."wo""rd"::text, t."line"::text, t."n"::bigint FROM "s"."words" AS t'
    told = "TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')"
    assert STATEMENTS.every_row == f"COPY ({every}) {told}"
    assert STATEMENTS.rows_of_keys == (
        f'COPY ({every} WHERE EXISTS (SELECT FROM pg_temp."headrace_keys" AS k '
        f'WHERE t."wo""rd" = k."c0" AND t."line" = k."c1")) {told}'
    )


def test_who_has_the_lock_is_the_only_one_who_changes_and_others_may_read() -> None:
    assert STATEMENTS.lock == 'LOCK TABLE "s"."words" IN SHARE ROW EXCLUSIVE MODE'
