"""Which letters an operator means."""

import pytest

from service.dead_letters.selection import Filters, parse_offsets, parse_place, parse_time
from tests.worlds.letters import letter

NOW = 1_700_000_100_000


@pytest.mark.parametrize(
    "filters",
    [
        Filters(),
        Filters(topic="orders", partition=3, offsets=(40, 42)),
        Filters(step="parse"),
        Filters(error="ValueError"),
        Filters(error="NOT json"),
        Filters(since_ms=1_700_000_009_999, until_ms=1_700_000_010_000),
        Filters(pipeline="orders"),
    ],
)
def test_a_letter_that_says_all_that_is_meant(filters):
    assert filters.fit(letter())


@pytest.mark.parametrize(
    "filters",
    [
        Filters(topic="others"),
        Filters(partition=2),
        Filters(offsets=(43, 50)),
        Filters(step="pars"),
        Filters(error="Value"),
        Filters(since_ms=1_700_000_010_000),
        Filters(until_ms=1_700_000_009_999),
        Filters(pipeline="others"),
    ],
)
def test_a_letter_that_says_something_else_is_not(filters):
    assert not filters.fit(letter())


def test_places_offsets_and_times_are_read():
    assert parse_place("0:17") == (0, 17)
    assert parse_offsets("40-90") == (40, 90)
    assert parse_offsets("40") == (40, 40)
    assert parse_time("2h", NOW) == NOW - 7_200_000
    assert parse_time("1700000000000", NOW) == 1_700_000_000_000
    assert parse_time("2023-11-14T22:13:20", NOW) == 1_700_000_000_000
    assert parse_time("2023-11-14T23:13:20+01:00", NOW) == 1_700_000_000_000


@pytest.mark.parametrize("text", ["", "17", "0:", "-1:2", "0:1:2", "a:b"])
def test_what_is_no_place_is_told_with_what_is_one(text):
    with pytest.raises(ValueError, match="PARTITION:OFFSET"):
        parse_place(text)


@pytest.mark.parametrize("text", ["", "9-3", "a-b", "1-", "-1"])
def test_what_are_no_offsets_is_told_with_what_are(text):
    with pytest.raises(ValueError, match="A-B is needed"):
        parse_offsets(text)


@pytest.mark.parametrize("text", ["", "yesterday", "2w", "2023-13-01"])
def test_what_is_no_time_is_told_with_what_is_one(text):
    with pytest.raises(ValueError, match="allowed: an age"):
        parse_time(text, NOW)
