"""What befalls two replicas on a node under load; run by test_node.py.

Each test does its harm while records are in flight, and waits until every partition goes on. The
last one compares the account: no record lost, none twice, every stored offset at its log's end.
"""

import subprocess

import pytest

from tests.deploy.node_world import (
    PODS,
    REPLICAS,
    SPACE,
    World,
    identity,
    kubectl,
    opened,
    ready,
    restarts,
    restricted_namespace,
    told,
    tried,
)
from tests.deploy.tools import tool
from tests.support.patience import seconds, until

pytestmark = [pytest.mark.deep, pytest.mark.timeout(460)]

_LAST_END = "jsonpath={.status.containerStatuses[0].lastState.terminated.reason}"
_SECONDS = 150.0


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("node"), World) as made:
        restricted_namespace()
        liveness = {"periodSeconds": 2, "timeoutSeconds": 2}
        probes = {"startup": {"periodSeconds": 1}, "liveness": liveness}
        made.install(made.values(probes=probes))
        made.more_come()
        yield made


def in_pod(pod: str, script: str) -> None:
    """Have a shell in a pod do what may be the end of the shell."""
    shell = ("--namespace", SPACE, "exec", pod, "--", "sh", "-c", script)
    tried("kube", "kubectl", *shell, seconds=60)


def both_are_ready() -> None:
    until("both replicas are ready", lambda: ready() == len(PODS), _SECONDS, told)


def test_a_replica_that_is_killed_comes_back_under_its_name(world):
    before = restarts(PODS[0])
    in_pod(PODS[0], "kill -9 -1")
    until("the container is started again", lambda: restarts(PODS[0]) > before, _SECONDS, told)
    world.more_come()
    both_are_ready()


def test_frozen_replica_is_relieved_and_restarted(world):
    before = restarts(PODS[1])
    in_pod(PODS[1], "kill -STOP -1")
    world.more_come()  # the other takes over when the session ends
    assert restarts(PODS[1]) == before
    until("liveness has it restarted", lambda: restarts(PODS[1]) > before, _SECONDS, told)
    world.more_come()
    both_are_ready()


def test_a_replica_that_runs_out_of_memory_is_ended_and_goes_on(world):
    before = restarts(PODS[0])
    in_pod(PODS[0], "touch /tmp/hungry")
    until("it is started again", lambda: restarts(PODS[0]) > before, _SECONDS, told)
    assert kubectl("get", "pod", PODS[0], f"--output={_LAST_END}") == "OOMKilled"
    world.more_come()
    both_are_ready()


def test_force_deleted_pod_leaves_its_partitions(world):
    before = identity(PODS[1])
    kubectl("delete", "pod", PODS[1], "--force", "--grace-period=0")
    world.more_come()
    until("it is made anew", lambda: identity(PODS[1]) not in {"", before}, _SECONDS, told)
    both_are_ready()


def test_drained_node_gives_up_one_replica(world):
    before = {identity(pod) for pod in PODS}
    selector = "--pod-selector=app.kubernetes.io/component=replica"
    drain = ("drain", "node", "--delete-emptydir-data", selector, "--timeout=60s")
    draining = subprocess.Popen(
        [tool("kube"), "kubectl", *drain],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until("one is evicted", lambda: ready() == 1, _SECONDS, told)
        world.more_come()
        said, _ = draining.communicate(timeout=seconds(120))
    finally:
        draining.kill()
        draining.wait()
    assert "would violate the pod's disruption budget" in said, said
    assert len(before & {identity(pod) for pod in PODS}) == 1
    assert ready() == 1
    kubectl("uncordon", "node")
    both_are_ready()
    world.more_come()


def test_a_rolling_restart_replaces_both_one_after_the_other(world):
    before = {identity(pod) for pod in PODS}
    kubectl("rollout", "restart", "statefulset/orders-headrace")
    fewest = len(PODS)

    def replaced() -> bool:
        nonlocal fewest
        fewest = min(fewest, ready())
        return not before & {identity(pod) for pod in PODS}

    until("both are replaced", replaced, _SECONDS, told)
    kubectl("rollout", "status", "statefulset/orders-headrace", "--timeout=120s")
    assert fewest == 1  # it was seen that one worked on while the other was replaced
    world.more_come()


def test_after_all_of_it_the_account_closes(world):
    world.account_closes()
    assert kubectl("get", "pods", REPLICAS, "--output=name").split() == [f"pod/{p}" for p in PODS]
