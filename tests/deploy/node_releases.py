"""The chart's life on a node: installed, upgraded, rolled back, removed; run by test_node.py."""

import pytest

from deploy.chart import CHART, ROOT
from tests.deploy.node_world import PODS, World, identity, kubectl, opened, restricted_namespace

pytestmark = [pytest.mark.deep, pytest.mark.timeout(460)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("node"), World) as made:
        yield made


def test_restricted_namespace_accepts_the_chart(world):
    restricted_namespace()
    world.install(world.values())
    world.more_come()
    world.helm("test")
    assert "partitions: 6 nobody's: []" in kubectl("logs", "orders-headrace-test")


def test_upgrade_and_rollback_replace_every_pod(world):
    first = [identity(pod) for pod in PODS]
    values = world.values({"retries": {"limit": 7}})
    world.helm("upgrade", str(ROOT / CHART), "--values", values, "--wait", "--timeout=4m")
    second = [identity(pod) for pod in PODS]
    assert not {*first} & {*second}
    mounted = ("exec", PODS[0], "--", "cat", "/etc/headrace/service.toml")
    assert '"limit" = 7' in kubectl(*mounted)
    world.more_come()
    world.helm("rollback", "--wait", "--timeout=4m")
    assert not {*second} & {identity(pod) for pod in PODS}
    assert '"limit" = 7' not in kubectl(*mounted)
    world.more_come()


def test_an_upgrade_that_changes_nothing_of_a_pod_restarts_none(world):
    before = [identity(pod) for pod in PODS]
    values = world.values(podDisruptionBudget={"enabled": False})
    world.helm("upgrade", str(ROOT / CHART), "--values", values, "--wait", "--timeout=2m")
    assert [identity(pod) for pod in PODS] == before
    assert not kubectl("get", "poddisruptionbudgets", "--output=name")


def test_reinstalled_release_continues_under_load(world):
    world.uninstall()
    begun = world.stored()
    assert all(begun.values())
    world.install(world.values())
    world.more_come()


def test_the_account_closes_and_nothing_is_left_of_the_release(world):
    world.account_closes()
    world.uninstall()
    world.account_closes()  # pods that ended have written and stored nothing more
    left = "statefulsets,services,configmaps,roles,rolebindings,networkpolicies,secrets"
    found = kubectl("get", left, "--selector=app.kubernetes.io/instance=orders", "--output=name")
    assert not found
