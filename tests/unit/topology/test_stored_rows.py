"""What is committed takes the place of stored rows, whatever came in however many commits."""

from collections import deque
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from topology.state import StoredRows

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64()), ("line", pa.string())])

rows = st.lists(
    st.builds(
        lambda word, line, n: {"word": word, "line": line, "n": n},
        st.sampled_from("abc"),
        st.sampled_from("xy"),
        st.integers(0, 99),
    ),
    max_size=4,
    unique_by=lambda row: (row["word"], row["line"]),
)


def table(found: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(found, schema=SCHEMA)


def in_order(found: Any) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["word"], row["line"]))


def by_row(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["word"], row["line"]): row for row in found}


def test_there_is_nothing_to_take_where_nothing_was_committed() -> None:
    stored = StoredRows(table([{"word": "a", "line": "x", "n": 1}]), deque(), ["word"], ["word"])
    assert stored.take_news() is None


def test_the_last_commit_of_a_row_counts_and_all_lines_of_its_key_are_told() -> None:
    before = [{"word": word, "line": line, "n": 1} for word in "ab" for line in "xy"]
    news = deque(table([{"word": "a", "line": "x", "n": n}]) for n in (2, 3))
    stored = StoredRows(table(before), news, ["word"], ["word", "line"])
    found = stored.take_news()
    assert found is not None
    assert in_order(found.to_pylist()) == [
        {"word": "a", "line": "x", "n": 3},
        {"word": "a", "line": "y", "n": 1},
    ]
    assert not news


@given(rows, st.lists(st.lists(rows, max_size=3), max_size=3))
def test_stored_rows_are_what_a_dictionary_of_them_would_be(
    before: list[dict[str, Any]], turns: list[list[list[dict[str, Any]]]]
) -> None:
    news: deque[pa.Table] = deque()
    stored = StoredRows(table(before), news, ["word"], ["word", "line"])
    expected = by_row(before)
    for commits in turns:
        for commit in commits:
            news.append(table(commit))
            expected |= by_row(commit)
        changed = {row["word"] for commit in commits for row in commit}
        found = stored.take_news()
        assert (found is None) == (not commits)
        if found is not None:
            told = [row for row in expected.values() if row["word"] in changed]
            assert in_order(found.to_pylist()) == in_order(told)
