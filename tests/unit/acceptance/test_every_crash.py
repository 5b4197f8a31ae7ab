"""`make crash` plays what it is told, and all of it when it is told nothing."""

import argparse
import random
from typing import get_args

import pytest

from service.config import EngineName
from service.failpoints import ACTIONS, PLACES, VARIABLE, failpoints
from tests.acceptance import every_crash
from tests.acceptance.crashes import ANY, MOST_CRASHES, OF_FAULTS, drawn, ways
from tests.acceptance.stores import STORES
from topology.sink import Kind

RNG = random.Random(7)
ENGINES: tuple[EngineName, EngineName] = ("local", "spark")


@pytest.mark.parametrize("sink", every_crash._every_sink())
def test_every_way_to_end_is_played_once_for_each_sink_and_kind(sink: str) -> None:
    store, engine = every_crash._store_and_engine(sink)
    places = every_crash._chosen(sink)[sink]
    for kind in get_args(Kind):
        cases = list(every_crash._cases(sink, kind, places, RNG))
        crashes = [crash.split(":") for case in cases for crash in case.crashes]
        played = sorted((name, "kill" if name == ANY else last) for name, _, last in crashes)
        assert played == sorted((way.place, way.action) for way in ways(engine))
        assert {(case.rows, case.engine) for case in cases} == {(store, engine)}
        assert max(len(case.crashes) for case in cases) <= MOST_CRASHES


def test_every_place_is_passed_on_one_engine_or_the_other() -> None:
    on_local, on_spark = ({way.place for way in ways(each)} for each in ENGINES)
    assert on_local | on_spark == {
        *(place for place in PLACES if not place.startswith(OF_FAULTS)),
        ANY,
    }
    assert {place for place in on_spark - on_local if place.startswith("range_")}
    assert not {place for place in on_local if place.startswith("range_")}


def test_a_failpoint_understands_every_crash_that_is_drawn() -> None:
    for seed in range(200):
        case = drawn(random.Random(seed), STORES, STORES, "opaque", MOST_CRASHES)
        for crash in case.crashes:
            if not crash.startswith(ANY):
                failpoints({VARIABLE: crash})
                assert crash.split(":")[2] in ACTIONS


def test_a_seed_draws_the_same_again() -> None:
    first, second = (drawn(random.Random("3 test"), STORES, STORES, "opaque", 3) for _ in range(2))
    assert first == second


def test_some_places_of_a_sink_are_chosen() -> None:
    chosen = every_crash._chosen("topic:any,topic:zk_before_write,delta:control")
    assert chosen == {"topic": {"any", "zk_before_write"}, "delta": {"control"}}
    assert len(list(every_crash._jobs(chosen, "1"))) == len(get_args(Kind)) + 1


def test_what_has_failed_once_is_played_with_its_sink_on_its_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = drawn(random.Random(3), ["topic"], ["topic"], "opaque", 1, "spark")
    monkeypatch.setattr(every_crash, "FAILED_ONCE", (case,))
    alone = len(get_args(Kind))
    for sink, count in (("topic", alone), ("topic@spark", alone + 1)):
        assert len(list(every_crash._jobs({sink: {ANY}}, "1"))) == count


@pytest.mark.parametrize(
    "wrong",
    [
        "nothing", "topic:nowhere", "upserts:control", "", "topic@storm", "upserts@spark:control",
        "delta@spark:letters_before_commit", "delta:range_after_seal",
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_and_what_is_there_is_named(wrong: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="allowed are"):
        every_crash._chosen(wrong)
