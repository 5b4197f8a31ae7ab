"""The spark engine with executors as pods of a restricted namespace; run by test_node.py."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance import evidence
from tests.deploy.node_world import (
    PARTITIONS,
    PODS,
    SPACE,
    World,
    identity,
    ids,
    kubectl,
    opened,
    restarts,
    restricted_namespace,
    told,
)
from tests.support.patience import until

pytestmark = [pytest.mark.deep, pytest.mark.timeout(460)]

EXECUTORS = "--selector=app.kubernetes.io/component=executor"
PIPELINE = """\
import socket
from typing import TypedDict

from headrace import Record, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters


class Row(TypedDict):
    id: str
    pod: str


@bolt
def derive(record: Record) -> Row:
    return {"id": (record.value or b"").decode(), "pod": socket.gethostname()}


topology = Topology("orders", reliability="exactly-once")
topology.dead_letters.into(KafkaDeadLetters("orders.dead"))
topology.source("orders").then(derive).into(DeltaSink("orders", schema=Row))
"""
_SECONDS = 150.0


class Lake:
    """A folder of the node that all pods may write, as a claim; and the table in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o777)
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "lake"},
            "spec": {**spec, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}},
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "lake", "namespace": SPACE},
            "spec": {**spec, "resources": {"requests": {"storage": "1Gi"}}},
        }
        manifests = folder.with_suffix(".json")
        manifests.write_text(
            json.dumps({"apiVersion": "v1", "kind": "List", "items": [volume, claim]})
        )
        kubectl("apply", f"--filename={manifests}")

    def rows(self) -> list[tuple[str, str]]:
        found = evidence.read_table(self.folder / "orders").to_pylist()
        return [(row["id"], row["pod"]) for row in found]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("node"), World) as made:
        restricted_namespace()
        yield made


@pytest.fixture(scope="module")
def lake(world):
    return Lake(world.folder / "lake")


def executors() -> dict[str, str]:
    each = "jsonpath={range .items[*]}{.metadata.name} {.status.phase}{'\\n'}{end}"
    lines = kubectl("get", "pods", EXECUTORS, f"--output={each}").splitlines()
    return dict(line.split(" ") for line in lines)


def running() -> set[str]:
    return {name for name, phase in executors().items() if phase == "Running"}


def more_come(world: World, lake: Lake) -> None:
    begun = world.feed.ends()

    def all_of_them() -> bool:
        found = {id_ for id_, _ in lake.rows()}
        return all(f"{topic}:{n}:{end + 5}" in found for (topic, n), end in begun.items())

    until("every partition goes on", all_of_them, _SECONDS, told)


def test_a_driver_makes_executors_of_which_each_writes_rows(world, lake):
    values = world.values(
        {
            "pipeline": {"engine": "spark", "drain_seconds": 15},
            "spark": {
                "conf": {
                    "spark.kubernetes.executor.request.cores": "0.2",  # two of them on one node
                    "spark.ui.enabled": "false",
                }
            },
        },
        pipeline={"files": {"orders.py": PIPELINE}},
        replicaCount=1,
        warehouse={"existingClaim": "lake"},
        sparkOnKubernetes={
            "enabled": True,
            "executors": 2,
            "cores": 1,
            "memory": "600m",
            "driverAddress": "ip",  # this node has no DNS
        },
        hostAliases=[{"ip": "10.96.0.1", "hostnames": ["kubernetes.default.svc"]}],
        # The table's log begins with Spark's start, on a machine that others use as well.
        probes={"startup": {"periodSeconds": 1, "failureThreshold": 240}},
    )
    world.install(values)
    more_come(world, lake)
    until("both executors run", lambda: len(running()) == 2, _SECONDS, told)
    until(
        "both have written rows",
        lambda: running() <= {pod for _, pod in lake.rows()},
        _SECONDS,
        told,
    )
    assert PODS[0] not in {pod for _, pod in lake.rows()}  # no bolt ran beside the driver


def test_executors_are_restricted_and_have_no_token(world, lake):
    pod = json.loads(kubectl("get", "pod", min(running()), "--output=json"))
    assert pod["spec"]["serviceAccountName"] == "orders-headrace-executor"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not [
        each
        for each in pod["spec"]["volumes"]
        if "projected" in each and "kube-api" in each["name"]
    ]
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["metadata"]["ownerReferences"][0]["name"] == PODS[0]  # goes when the driver goes


def test_deleted_executor_is_replaced(world, lake):
    before, driver = running(), (identity(PODS[0]), restarts(PODS[0]))
    gone = min(before)
    kubectl("delete", "pod", gone, "--force", "--grace-period=0")
    more_come(world, lake)
    until("there are two again", lambda: len(running() - {gone}) == 2, _SECONDS, told)
    assert (identity(PODS[0]), restarts(PODS[0])) == driver


def test_summary_reconciles_and_executors_end(world, lake):
    world.feed.stop()
    ends = world.feed.ends()
    until("all is written", lambda: len(lake.rows()) >= sum(ends.values()), _SECONDS, told)
    until("all is committed", lambda: world.stored() == ends, _SECONDS, told)
    assert Counter(id_ for id_, _ in lake.rows()) == Counter(ids(ends))
    assert sum(ends.values()) > 100 * PARTITIONS
    assert not world.values_of("orders.dead")
    world.uninstall()
    until("no executor is left", lambda: not executors(), _SECONDS, told)
