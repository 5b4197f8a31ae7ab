import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from headrace.testing import topology_test
from partition.records import Partition
from service.observability.charts import History
from service.observability.health import HealthCheck
from service.observability.status_page import MOST_PARTITIONS, StatusPage, graph_of
from tests.support.charts import drawn
from tests.support.service import snapshot, topology
from topology import masking
from topology.monitoring import RecentFailure


class World:
    def __init__(self, first, made):
        self.now = 100.0
        self.snapshot = first
        self.look = Mock(side_effect=lambda: self.snapshot)
        self.history = History()
        health = HealthCheck(self.look, clock=lambda: self.now)
        self.page = StatusPage("orders-eu", made, self.look, health, self.history, lambda: self.now)

    def status(self):
        self.now += 1.0
        return json.loads(self.page.json())


@pytest.fixture
def world():
    made = topology()
    with topology_test(made) as test:
        test.send(b"1", b"99", b"x")
        test.send(b"2", topic="returns")
        yield World(snapshot(test), made)


def test_the_counts_are_those_of_the_snapshot(world):
    status = world.status()
    names = {each["name"]: each["id"] for each in status["graph"]["nodes"]}
    done = {name: status["nodes"][node]["done"] for name, node in names.items()}
    assert (done["orders"], done["returns"]) == (3, 1)
    assert (done["parse"], done["check"]) == (3, 3)
    assert (done["all"], done["late"]) == (2, 1)
    assert status["nodes"][names["parse"]]["failed"] > 0
    assert status["totals"]["read"] == 4
    assert status["totals"]["unresolved"] == 1
    assert status["health"]["ready"] == {"ok": True, "problems": []}
    assert {each["partition"] for each in status["partitions"]} >= {"orders[0]", "returns[0]"}


def test_failures_are_told_with_their_reasons_the_newest_first(world):
    (failure, *_) = world.status()["failures"]
    assert failure["step"] == "parse"
    assert failure["error_class"] == "ValueError"
    assert "invalid literal for int()" in failure["error"]
    older = RecentFailure(1.0, "step_failing", "parse", "KeyError", "older", 3)
    failures = (older, *world.snapshot.recent_failures)
    world.snapshot = replace(world.snapshot, recent_failures=failures)
    assert [each["error_class"] for each in world.status()["failures"]][-1] == "KeyError"


def test_of_many_partitions_those_are_shown_that_need_it_most(world):
    first = world.snapshot.partitions[0]
    many = [
        replace(first, partition=Partition("orders", n), commit_age_seconds=float(n == 777))
        for n in range(1_000)
    ]
    halted = {Partition("orders", 999): "the topic was made anew"}
    world.snapshot = replace(world.snapshot, partitions=tuple(many), halted=halted)
    status = world.status()
    names = [each["partition"] for each in status["partitions"]]
    assert len(names) == MOST_PARTITIONS
    assert status["partitions_total"] == len(status["last_completed"]) == 1_000
    assert {"orders[777]", "orders[999]"} < set(names)
    assert status["halted"] == {"orders[999]": "the topic was made anew"}
    assert "orders[999] is halted" in status["health"]["ready"]["problems"][0]


def test_however_many_ask_it_is_made_once(world):
    first = world.page.json()
    asked = world.look.call_count
    assert all(world.page.json() is first for _ in range(1_000))
    assert world.look.call_count == asked
    world.now += 1.0
    assert world.page.json() is not first


def test_page_has_the_charts_of_its_history(world):
    for taken_at in (0.0, 50.0, 100.0):
        parts = [replace(each, log_end=int(taken_at)) for each in world.snapshot.partitions]
        world.history.add(replace(world.snapshot, taken_at=taken_at, partitions=tuple(parts)))
    world.now += 1.0
    history = json.loads(world.page.history_json())
    assert [each["at"] for each in history["samples"]] == [50.0, 100.0]
    shown = drawn(world.page.html().decode())
    assert shown.now == history["now"] == world.now
    (lag,) = shown.lines["lag"]
    assert lag[-1] == pytest.approx((world.now - 100.0, 1.0), abs=0.2)
    assert world.status()["latency"].keys() < history["samples"][0].keys()
    assert b"history.json" in world.page.html()  # for whoever has no JavaScript


def test_before_the_first_turn_it_says_so():
    status = World(None, topology()).status()
    assert status["taken_at"] is None
    assert status["health"]["ready"]["problems"] == ["starting"]
    assert status["graph"]["nodes"]


def test_texts_of_errors_can_be_left_out(world):
    told = "card 4111-1111"
    failure = RecentFailure(1.0, "step_failing", "parse", "E", told, 1)
    sinks = [replace(each, failing_since=1.0, last_error=told) for each in world.snapshot.sinks]
    apart = replace(world.snapshot.apart, failing_since=1.0, last_error=told)
    failing = replace(world.snapshot, recent_failures=(failure,), sinks=tuple(sinks), apart=apart)
    for world.snapshot, shown in (
        (failing, told), (failing.without_errors(), "(hidden by [http] show_errors)"),
    ):  # fmt: skip
        status = world.status()
        assert (told in json.dumps(status)) is (shown == told)
        found = [status["failures"][0][key] for key in ("step", "error_class", "error")]
        assert found == ["parse", "E", shown]


def test_a_secret_in_a_reason_is_hidden(world, monkeypatch):
    hidden = masking.Mask()
    hidden.learn(["canary-s3cret"])
    monkeypatch.setattr("service.observability.status_page.mask", hidden)
    failure = RecentFailure(1.0, "step_failing", "parse", "E", "login canary-s3cret refused", 1)
    world.snapshot = replace(world.snapshot, recent_failures=(failure,))
    assert "canary-s3cret" not in json.dumps(world.status())
    assert world.status()["failures"][0]["error"] == "login *** refused"


def test_every_step_is_a_layer_behind_the_last_that_leads_to_it():
    graph = graph_of(topology())
    names = {each.id: each.name for each in graph.nodes}
    assert {each.name: each.layer for each in graph.nodes} == {
        "orders": 0, "returns": 0, "parse": 1, "parse_returns": 1, "check": 2, "all": 3, "late": 3,
    }  # fmt: skip
    assert {(names[e.source], names[e.target], e.stream) for e in graph.edges} == {
        ("orders", "parse", ""),
        ("returns", "parse_returns", ""),
        ("parse", "check", ""),
        ("parse_returns", "check", ""),
        ("check", "all", ""),
        ("check", "late", "late"),
    }
    places = [(each.layer, each.row) for each in graph.nodes]
    assert len(set(places)) == len(places)
    assert [each.kind for each in graph.nodes][:2] == ["source", "source"]
