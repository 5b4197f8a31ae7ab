"""`make crash` plays what it is told, and all of it when it is told nothing."""

import argparse
import random
from typing import get_args

import pytest

from tests.acceptance.stores import STORES
from tests.faults import sink_crashes
from tests.faults.sink_crashes import ANY, MOST_CRASHES, OF_FAULTS, drawn, ways
from tests.support.failpoints import PLACES, failpoint
from topology.sink import Kind

ENGINES = ("local", "spark")


@pytest.mark.parametrize("sink", sink_crashes.every_sink())
def test_each_way_to_end_is_played_once_for_each_sink_and_kind(sink):
    every = ways(sink_crashes.of_sink(sink).engine)
    plays = sink_crashes.plays_of(sink, "7", 1.0).values()
    cases = [play.run.args[0] for play in plays]
    crashes = [crash.split(":") for case in cases for crash in case.crashes]
    played = sorted((name, "kill" if name == ANY else last) for name, _, last in crashes)
    assert played == sorted(2 * [(way.place, way.action) for way in every])
    assert {case.sink for case in cases} == {sink}
    assert max(len(case.crashes) for case in cases) <= MOST_CRASHES


def test_every_place_is_passed_on_one_engine_or_the_other():
    on_local, on_spark = ({way.place for way in ways(each)} for each in ENGINES)
    assert on_local | on_spark == {
        *(place for place in PLACES if not place.startswith(OF_FAULTS)),
        ANY,
    }
    assert {place for place in on_spark - on_local if place.startswith("range_")}
    assert not {place for place in on_local if place.startswith("range_")}


def test_a_failpoint_understands_every_crash_that_is_drawn():
    for seed in range(200):
        case = drawn(random.Random(seed), STORES, STORES, "opaque", MOST_CRASHES)
        for crash in case.crashes:
            if not crash.startswith(ANY):
                failpoint(crash)


def test_a_seed_draws_the_same_again():
    first, second = (drawn(random.Random("3 test"), STORES, STORES, "opaque", 3) for _ in range(2))
    assert first == second


def test_some_places_of_a_sink_are_chosen():
    text = "topic:any,topic:zk_before_write,delta:control"
    chosen = sink_crashes.chosen(text)
    assert chosen == {"topic": {"any", "zk_before_write"}, "delta": {"control"}}
    assert len(sink_crashes.plays_of(text, "1", 1.0)) == len(get_args(Kind)) + 1


def test_cases_that_failed_once_are_played_with_their_sink(monkeypatch):
    case = drawn(random.Random(3), ["topic"], ["topic"], "opaque", 1, "spark")
    monkeypatch.setattr(sink_crashes, "FAILED_ONCE", (case,))
    alone = len(get_args(Kind))
    for sink, count in (("topic", alone), ("topic@spark", alone + 1)):
        assert len(sink_crashes.plays_of(f"{sink}:{ANY}", "1", 1.0)) == count


@pytest.mark.parametrize(
    "wrong",
    [
        "nothing", "topic:nowhere", "upserts:control", "topic@storm", "upserts@spark:control",
        "delta@spark:letters_before_commit", "delta:range_after_seal",
    ],
)  # fmt: skip
def test_unknown_cases_are_refused_with_the_known_ones(wrong):
    with pytest.raises(argparse.ArgumentTypeError, match="expected one of"):
        sink_crashes.plays_of(wrong, "1", 1.0)
