"""Flights damaged on purpose: what a consumer meets in the wild."""

from collections.abc import Callable
from typing import Any

import orjson

Row = dict[str, Any]


def encode(row: Row | list[Row]) -> bytes:
    """A flight as it is published."""
    return orjson.dumps(row)


def damaged(row: Row, number: int) -> bytes | None:
    """A record that must end in the dead letters; `number` chooses the damage in turn."""
    return _DAMAGES[number % len(_DAMAGES)](row)


def _cut_off(row: Row) -> bytes:
    whole = encode(row)
    return whole[: len(whole) // 2]


def _not_json(_row: Row) -> bytes:
    return b"<flight>UA 1545</flight>"


def _not_text(_row: Row) -> bytes:
    return bytes(range(128, 192))


def _empty(_row: Row) -> bytes:
    return b""


def _tombstone(_row: Row) -> None:
    return None


def _no_carrier(row: Row) -> bytes:
    return encode({name: value for name, value in row.items() if name != "carrier"})


def _null_carrier(row: Row) -> bytes:
    return encode(row | {"carrier": None})


def _distance_in_words(row: Row) -> bytes:
    return encode(row | {"distance": f"{row['distance']} miles"})


def _list_of_flights(row: Row) -> bytes:
    return encode([row])


def _unknown_carrier(row: Row) -> bytes:
    # It parses, and is rejected where the carrier is looked up; so it must not be cancelled.
    return encode(row | {"carrier": "??", "dep_time": row["sched_dep_time"]})


_DAMAGES: tuple[Callable[[Row], bytes | None], ...] = (
    _cut_off,
    _not_json,
    _not_text,
    _empty,
    _tombstone,
    _no_carrier,
    _null_carrier,
    _distance_in_words,
    _list_of_flights,
    _unknown_carrier,
)
