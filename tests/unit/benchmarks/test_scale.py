"""Suite scale: which limit is passed, what is held to the promise, and a run without a server."""

import json
from dataclasses import replace

import pytest

from benchmarks import scale
from benchmarks.scale_measured import OnZooKeeper, memory, owner_thread
from benchmarks.scale_model import AS_BUILT, SPLIT
from benchmarks.scale_weights import Cluster, weigh
from service.devservers.java import DevServerError

SMALL = Cluster(80, 8)


@pytest.fixture(scope="module")
def weights():
    return weigh(SMALL)


def found(weights, cluster=SMALL, design=AS_BUILT):
    return scale.outcome(scale.Case("small", cluster, design), weights)


def test_a_plan_that_no_node_can_hold_is_told(weights):
    large = replace(weights, plan_bytes=2 * 1024 * 1024)
    assert found(large).strains["the plan's node"] == 2
    assert found(large, design=SPLIT).strains["the plan's node"] == 2 / 8


def test_nothing_is_near_its_limit_in_a_small_cluster(weights):
    assert max(found(weights).strains.values()) < 0.2


def test_commits_that_are_asked_for_count_and_not_those_that_get_through(weights):
    many = found(weights, Cluster(4_000, 8, commit_seconds=0.01))
    assert many.strains["ZooKeeper's leader"] > 5


def test_a_takeover_and_its_claims_are_held_to_the_promise(weights):
    real = OnZooKeeper(1_000, 6.0, 200.0, 1_000, 0.1, 2, 9.0, 15.0, 0.001, 8, 0.01, 0.02)
    takeover, claims = scale.goals(found(weights), real)
    assert takeover.limit == 12.0
    assert claims.found == pytest.approx(18 * 0.2)  # 125 partitions among seven
    assert not claims.is_met


def test_without_a_server_the_model_still_runs_and_it_is_said(monkeypatch, fake_bench):
    def no_java(**_options):
        raise DevServerError("there is no Java")

    monkeypatch.setattr(scale, "CASES", [scale.Case("small", SMALL, AS_BUILT)])
    monkeypatch.setattr(scale, "on_zookeeper", no_java)
    monkeypatch.setattr(scale, "memory", lambda _partitions: memory(20))
    monkeypatch.setattr(scale, "owner_thread", lambda _known, _own: owner_thread(20, 5))
    result = scale.run(fake_bench({}))
    facts = json.loads(json.dumps(result.json, allow_nan=False))
    assert facts["measured"] is None
    assert facts["memory"][0]["known_bytes"] < facts["memory"][0]["idle_bytes"]
    assert facts["model"][0]["writes_per_second"] == pytest.approx(8, rel=0.05)
    assert "there is no Java" in result.notes
    assert [goal.name for goal in result.goals] == ["takeover, s (model)"]
