"""What entries of a manifest log say, and what they cannot say."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.manifest.entry import (
    Change,
    Column,
    Entry,
    InvalidEntry,
    Line,
    Listed,
    Whole,
    decode,
    encode,
    is_inside,
    line_key,
)
from sinks.manifest.state import State

naturals = st.integers(0, 2**63 - 1)
texts = st.text(max_size=5)
paths = st.integers(0, 9).map("a={0}/part-{0}.parquet".format)
listed = st.builds(
    Listed, paths, naturals, naturals, st.dictionaries(texts, st.none() | texts, max_size=2)
)
lines = st.dictionaries(
    st.sampled_from("abc"), st.builds(Line, naturals, naturals, naturals, naturals, texts)
)
columns = st.lists(st.builds(Column, texts, texts), max_size=3).map(tuple)
many = st.lists(paths, max_size=4, unique=True).map(tuple)
changes = st.builds(
    Change,
    add=st.lists(listed, max_size=4).map(tuple),
    remove=many,
    forget=many,
    lines=lines,
    columns=st.none() | columns,
)
TABLE = Whole("t", (Column("n", "bigint"),), ("p",))


def entry(version: int = 1, change: Change | None = None, whole: Whole | None = None) -> Entry:
    change = change or Change()
    return Entry(
        format=1,
        version=version,
        made_ms=version,
        made_by="pipeline/sink",
        add=change.add,
        remove=change.remove,
        forget=change.forget,
        lines=change.lines,
        columns=change.columns,
        whole=whole,
    )


@settings(max_examples=50)
@given(changes)
def test_what_is_written_is_read(change: Change) -> None:
    assert decode(encode(entry(3, change, TABLE)), 3) == entry(3, change, TABLE)


@settings(max_examples=50)
@given(st.lists(changes, max_size=6), st.integers(0, 6))
def test_the_whole_of_an_entry_is_what_all_entries_up_to_it_come_to(
    given_changes: list[Change], place: int
) -> None:
    entries = [entry(version, change) for version, change in enumerate(given_changes, start=1)]
    replayed = State.of(TABLE, 0)
    short = State.of(TABLE, 0)
    for number, each in enumerate(entries):
        if number == place:
            before = short.whole()
            after = short.after(each)
            assert short.whole() == before
            told = decode(encode(entry(each.version, whole=after.whole())), each.version)
            assert told.whole is not None
            short = State.of(told.whole, told.version)
        else:
            short.apply(each)
        replayed.apply(each)
    assert short == replayed
    assert list(short.files) == list(replayed.files)


def test_an_entry_is_short_and_can_be_read_by_people() -> None:
    change = Change(
        add=(Listed("part-1.parquet", 2, 345),), lines={"a/b/orders[3]": Line(1, 7, 10, 12, "d")}
    )
    assert json.loads(encode(entry(7, change))) == {
        "format": 1,
        "version": 7,
        "made_ms": 7,
        "made_by": "pipeline/sink",
        "add": [{"path": "part-1.parquet", "rows": 2, "bytes": 345}],
        "lines": {"a/b/orders[3]": {"epoch": 1, "txid": 7, "first": 10, "end": 12, "digest": "d"}},
    }


GOOD: dict[str, Any] = json.loads(encode(entry(1, Change(add=(Listed("a.parquet", 1, 1),)))))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "truncated"),
        (b"\0" * 80, "malformed"),
        (encode(entry())[:-5], "truncated"),
        (b'{"version": 1}', "format"),
        (b'{"format": 2, "version": 1, "new": 1}', "found format 2; .* reads 1"),
        (encode(entry(2)), "it is entry 2, but its name says 1"),
        (b'{"format":1,"version":1,"made_ms":-1,"made_by":""}', "made_ms"),
        (b'{"format":1,"version":1,"made_ms":1,"made_by":"","add":[{"path":"a"}]}', "rows"),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"format":1,"made_by":"\xff"}', "(?i)utf-8"),
    ],
)
def test_what_is_no_entry_is_refused_with_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(InvalidEntry, match=reason):
        decode(raw, 1)


def test_the_first_entry_says_what_the_table_is() -> None:
    with pytest.raises(InvalidEntry, match="entry 0 does not say"):
        decode(encode(entry(0)), 0)


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../other/a", "a/../../b", "a//b", "./a", "a\0b", "_headrace/0.json"],
)
def test_no_entry_names_a_file_outside_of_its_table(path: str) -> None:
    assert not is_inside(path)
    for change in (
        Change(add=(Listed(path, 1, 1),)),
        Change(remove=(path,)),
        Change(forget=(path,)),
    ):
        with pytest.raises(InvalidEntry, match="none below the table's folder"):
            decode(encode(entry(1, change)), 1)
    for whole in (
        Whole("t", (), (), files=(Listed(path, 1, 1),)),
        Whole("t", (), (), removed={path: 1}),
    ):
        with pytest.raises(InvalidEntry, match="none below the table's folder"):
            decode(encode(entry(50, whole=whole)), 50)


def test_an_entry_that_does_not_follow_is_refused() -> None:
    with pytest.raises(InvalidEntry, match="entry 2 does not follow 0"):
        State.of(TABLE, 0).apply(entry(2))


@given(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
def test_lines_of_other_pipelines_and_sinks_have_other_names(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (line_key(*one) == line_key(*other)) == (one == other)
    assert line_key("flights", "delays", "orders[3]") == "flights/delays/orders[3]"
