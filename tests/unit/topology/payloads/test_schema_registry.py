import threading
from concurrent.futures import wait
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.patience import seconds
from topology.payloads.schema_registry import (
    AGAIN_SECONDS,
    FORGET_SECONDS,
    MOST,
    CycleCheck,
    Fetching,
    Patience,
    cycle_in,
)
from topology.record import Reject, Retry

SECONDS = seconds(30.0)


@pytest.fixture
def clock():
    return Mock(return_value=100.0)


@pytest.fixture
def fetching(clock):
    made = Fetching("schemas-test", clock)
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("error", "kept_seconds"), [(Retry("away"), AGAIN_SECONDS), (Reject("unknown"), FORGET_SECONDS)]
)
def test_a_failure_is_not_asked_for_again_for_some_time(fetching, clock, error, kept_seconds):
    fails = Mock(side_effect=error)
    for passed in (0, kept_seconds / 2, kept_seconds / 2 - 0.1):
        clock.return_value += passed
        with pytest.raises(type(error), match=str(error)):
            fetching.fetch("a", fails)
    fails.assert_called_once_with()
    clock.return_value += 0.1
    fetching.fetch("a", lambda: None)


def test_what_is_remembered_is_bounded(fetching):
    for key in range(MOST + 10):
        with pytest.raises(Reject):
            fetching.fetch(key, Mock(side_effect=Reject("unknown")))
    assert len(fetching._verdicts) == MOST
    answers = threading.Event()

    def hangs():
        assert answers.wait(SECONDS)

    def fetch_without_waiting(key):
        fetching._patience.spend(1e9)
        fetching.fetch(key, hangs)

    for key in range(MOST):
        with pytest.raises(Retry, match="being fetched"):
            fetch_without_waiting(("held", key))
    with pytest.raises(Retry, match=f"{MOST} schemas"):
        fetch_without_waiting("one more")
    answers.set()
    wait(fetching._fetches.values(), SECONDS)
    fetching._patience = Patience(SECONDS, 1.0)
    fetching.fetch("one more", hangs)
    assert len(fetching._fetches) == 0


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=30),
    st.floats(0, 5),
    st.floats(0, 1),
)
def test_all_waits_together_take_the_burst_and_a_share_of_the_time(steps, burst, share):
    patience, now, waited = Patience(burst, share), 0.0, 0.0
    for pause, wanted in steps:
        now += pause
        left = patience.left(now)
        assert 0 <= left <= burst
        wait = min(left, wanted)
        patience.spend(wait)
        now += wait
        waited += wait
        assert waited <= burst + share * now + 1e-6


def record(name, *types):
    fields = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


INNER = record("x.B", "string", {"type": "int", "logicalType": "date"})


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (["null", "long"], None),
        (record("A", "long", ["null", "string"], {"type": "array", "items": "string"}), None),
        (record("A", INNER, "x.B", ["null", "x.B"]), None),  # twice is not within itself
        (record("A", {"type": "enum", "name": "E", "symbols": ["A"]}, "E"), None),
        (record("A", {"type": {"type": "map", "values": "long"}}), None),
        (record("A", "A"), "A"),
        (record("A", {"type": "map", "values": ["null", "A"]}), "A"),
        (record("A", record("B", {"type": "array", "items": ["null", "A"]})), "A"),
        (record("A", INNER, record("C", ["null", "C"])), "C"),
        ([INNER, record("A", ["null", "A"])], "A"),
    ],
)
def test_cycle_in_an_avro_schema_is_found(schema, name):
    assert cycle_in(schema) == name


def test_avro_schema_is_walked_once_and_refused_each_time(monkeypatch):
    check, bad = CycleCheck(), record("A", ["null", "A"])
    for _ in range(2):
        with pytest.raises(Reject, match="'A' of the schema may contain itself"):
            check(bad)
    check(INNER)
    monkeypatch.setattr("topology.payloads.schema_registry.cycle_in", None)  # not called
    check(INNER)
