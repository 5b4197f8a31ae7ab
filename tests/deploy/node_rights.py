"""What the chart's service accounts may do, as the API server answers; run by test_node.py."""

import json

import pytest

from deploy.chart import CHART, ROOT
from tests.deploy.node_world import IMAGE, SPACE, command, kubectl, restricted_namespace, tried

pytestmark = [pytest.mark.deep, pytest.mark.timeout(300)]

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
DRIVERS = ("pods", "configmaps", "services", "persistentvolumeclaims")
# Whoever has one of these has more than the driver is to have, or soon will.
NOBODYS = (
    "secrets",
    "pods/exec",
    "pods/attach",
    "pods/portforward",
    "pods/ephemeralcontainers",
    "pods/eviction",
    "serviceaccounts",
    "serviceaccounts/token",
    "statefulsets.apps",
    "deployments.apps",
    "jobs.batch",
    "networkpolicies.networking.k8s.io",
    "poddisruptionbudgets.policy",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "leases.coordination.k8s.io",
    "events",
    "nodes",
    "namespaces",
    "persistentvolumes",
    "clusterroles.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
)
DRIVER, EXECUTOR = "spark-headrace", "spark-headrace-executor"
PLAIN = "plain-headrace"


def installed(release: str, **over: object) -> None:
    """Install a release of which no pod is to run: no service account needs one."""
    values = {
        "topology": "orders:topology",
        "image": dict(IMAGE),
        "replicaCount": 0,
        "config": {
            "kafka": {"bootstrap.servers": "kafka:9092"},
            "zookeeper": {"hosts": "zookeeper:2181"},
            **({"pipeline": {"engine": "spark"}} if over else {}),
        },
        **over,
    }
    flags = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    command("helm", "install", release, str(ROOT / CHART), "--namespace", SPACE, *flags)


@pytest.fixture(scope="module", autouse=True)
def releases():
    restricted_namespace()
    kubectl("create", "namespace", "elsewhere")
    installed("spark", sparkOnKubernetes={"enabled": True})
    installed("plain")


def may(account: str, verb: str, resource: str, space: str = SPACE) -> bool:
    kind, _, part = resource.partition("/")  # to kubectl what follows a slash is a name
    asked = ("auth", "can-i", verb, kind, f"--subresource={part}",
             f"--as=system:serviceaccount:{SPACE}:{account}")  # fmt: skip
    done = tried("kube", "kubectl", "--namespace", space, *asked, seconds=60)
    assert done.stdout.strip() in {"yes", "no"}, done.stdout + done.stderr
    return done.stdout.strip() == "yes"


def rights(account: str, space: str = SPACE) -> set[str]:
    """All that the API server grants there, a line each: resources, names, verbs."""
    asked = ("auth", "can-i", "--list", f"--as=system:serviceaccount:{SPACE}:{account}")
    lines = command("kube", "kubectl", "--namespace", space, *asked).splitlines()[1:]
    return {" ".join(line.split()) for line in lines}


def test_the_chart_makes_these_accounts_and_no_more():
    chosen = "--selector=app.kubernetes.io/name=headrace"
    names = kubectl("get", "serviceaccounts", chosen, "--output=name").split()
    assert sorted(names) == [f"serviceaccount/{each}" for each in (PLAIN, DRIVER, EXECUTOR)]


@pytest.mark.parametrize("account", [PLAIN, EXECUTOR])
def test_who_makes_no_executors_has_no_right_but_everybodys(account):
    """Everybody's: what an account has that nothing was ever granted to."""
    assert rights(account) == rights("made-up")
    assert rights(account, "elsewhere") == rights("made-up", "elsewhere")


def test_a_driver_has_what_spark_asks_for_and_nothing_else():
    granted = rights(DRIVER) - rights("made-up")
    assert granted == {f"{each} [] [] [{' '.join(VERBS)}]" for each in DRIVERS}
    assert rights(DRIVER, "elsewhere") == rights("made-up", "elsewhere")


@pytest.mark.parametrize("resource", DRIVERS)
def test_a_driver_may_do_all_of_it_in_its_own_namespace_only(resource):
    assert all(may(DRIVER, verb, resource) for verb in VERBS)
    for verb in ("get", "create"):
        assert not may(DRIVER, verb, resource, "elsewhere")
        assert not may(EXECUTOR, verb, resource)


@pytest.mark.parametrize("resource", NOBODYS)
def test_a_driver_may_not_touch(resource):
    assert not any(may(DRIVER, verb, resource) for verb in ("get", "create"))


def test_only_a_driver_is_given_a_token():
    field = "jsonpath={.spec.template.spec.automountServiceAccountToken}"
    of = {
        name: kubectl("get", "statefulset", name, f"--output={field}") for name in (DRIVER, PLAIN)
    }
    assert of == {DRIVER: "true", PLAIN: "false"}
    for account in (DRIVER, EXECUTOR, PLAIN):
        mounts = "jsonpath={.automountServiceAccountToken}"
        assert kubectl("get", "serviceaccount", account, f"--output={mounts}") == "false"
