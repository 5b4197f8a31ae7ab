import importlib
import os
import shutil
import tomllib
from pathlib import Path

import pytest

from deploy.chart import CHART, ROOT
from partition.interfaces import AtTimestamp
from service.config.settings import load
from tests.deploy.tools import (
    CI,
    Manifest,
    each_case,
    manifests,
    only,
    packaged,
    refusal,
    rendered,
    run,
    template,
    values_of,
)

SMALLEST = CI / "configmap-values.yaml"
SECURED = CI / "secured-values.yaml"
SPARK = CI / "spark-values.yaml"
EXTRA = CI / "everything-extra-values.yaml"
SNAPSHOTS = Path(__file__).with_name("snapshots")
OLDEST = "1.27"  # kubeVersion in Chart.yaml
OPERATORS = {"PodMonitor", "PrometheusRule", "ScaledObject"}  # their schemas are for `make deep`


@each_case
def test_helm_finds_nothing_to_complain_of(case):
    done = run(packaged("helm"), "lint", "--strict", ROOT / CHART, "-f", values_of(case))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


@each_case
def test_what_is_made_is_what_was_looked_at(case):
    made = template("-f", values_of(case))
    kept = SNAPSHOTS / f"{case}.yaml"
    if os.environ.get("SNAPSHOTS") == "write":
        kept.write_text(made, encoding="utf-8")
    assert made == kept.read_text(encoding="utf-8"), "if so intended: SNAPSHOTS=write make unit"


@pytest.fixture
def schemas():
    """The schemas of Kubernetes: imported here, as it takes seconds."""
    return importlib.import_module("kubernetes_validate")


@pytest.mark.slow
@each_case
@pytest.mark.parametrize("kubernetes", [OLDEST, None], ids=["oldest", "latest"])
def test_every_manifest_fits_its_kind_without_an_unknown_field(case, kubernetes, schemas):
    unknown = set()
    for each in manifests(template("-f", values_of(case))):
        try:
            schemas.validate(each, kubernetes or schemas.latest_version(), strict=True)
        except schemas.SchemaNotFoundError:
            unknown.add(each["kind"])
    assert unknown == (OPERATORS if case == "secured" else set())


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("serviceName:", "serviceNames:"), ("minReadySeconds: 0", 'minReadySeconds: "0"')],
)
def test_a_field_that_is_misspelt_or_mistyped_is_found(right, wrong, schemas):
    made = template("-f", SMALLEST)
    assert right in made
    spoilt = only(manifests(made.replace(right, wrong)), "StatefulSet")
    with pytest.raises(schemas.ValidationError, match=right.split(":", maxsplit=1)[0]):
        schemas.validate(spoilt, schemas.latest_version(), strict=True)


def pods(made: list[Manifest]) -> list[Manifest]:
    found = [each["spec"]["template"] for each in made if each["kind"] == "StatefulSet"]
    found += [each for each in made if each["kind"] == "Pod"]
    for each in made:
        text = each.get("data", {}).get("executor.yaml") if each["kind"] == "ConfigMap" else None
        found += manifests(text) if text else []
    return found


@each_case
def test_pods_are_restricted_and_write_to_named_volumes(case):
    found = pods(list(manifests(template("-f", values_of(case)))))
    assert len(found) == (3 if case == "spark" else 2)
    for pod in found:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"] + spec.get("initContainers", []):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPath" in volume for volume in spec["volumes"])


@each_case
def test_service_and_budget_select_replicas_only(case):
    made = manifests(template("-f", values_of(case)))
    replica = only(made, "StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [only(made, "Service")["spec"]["selector"]]
    selectors += [
        each["spec"]["selector"]["matchLabels"]
        for each in made
        if each["kind"] in ("StatefulSet", "PodDisruptionBudget", "PodMonitor")
    ]
    for selector in selectors:
        assert selector.items() <= replica
        for other in pods(list(made))[1:]:
            assert not selector.items() <= other["metadata"]["labels"].items()
    policy = only(made, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items()
    for each in pods(list(made)):
        assert policy <= each["metadata"]["labels"].items()


def service_toml(made: list[Manifest] | tuple[Manifest, ...]) -> str:
    return only(made, "ConfigMap", suffix="-config")["data"]["service.toml"]


def test_the_service_reads_the_configuration_as_the_values_say_it(tmp_path, monkeypatch):
    file = tmp_path / "service.toml"
    made = list(manifests(template("-f", SECURED)))
    text = service_toml(made)
    for name in ("ca.crt", "tls.crt", "tls.key"):
        assert f"/etc/headrace-tls/kafka/{name}" in text
    tls = tmp_path / "ca.pem"  # a path that is there: the service looks into it
    shutil.copy(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"), tls)
    for path in ("/etc/headrace-tls/zookeeper/ca.crt", "/etc/headrace-storage/ca.crt"):
        text = text.replace(path, str(tls))
    file.write_text(text, encoding="utf-8")
    for name in ("KAFKA__SASL_USERNAME", "KAFKA__SASL_PASSWORD"):
        monkeypatch.setenv(f"HEADRACE_{name}", "given")
    for name in ("ZOOKEEPER__USERNAME", "ZOOKEEPER__PASSWORD"):
        monkeypatch.setenv(f"HEADRACE_{name}", "given")
    config = load(file)
    assert config.pipeline.drain_seconds == 40.5
    assert config.pipeline.start_from == AtTimestamp(1767225600000)
    assert config.kafka["security.protocol"] == "sasl_ssl"
    assert config.kafka["queued.min.messages"] == 200000
    assert config.kafka["sasl.password"] == "given"
    assert config.zookeeper.tls
    assert config.storage.warehouse == "s3://lake/orders"


def test_secrets_come_from_secrets_not_config_maps():
    made = list(manifests(template("-f", SECURED)))
    variables = {
        each["name"]: each.get("valueFrom", {}).get("secretKeyRef")
        for each in only(made, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert variables["HEADRACE_KAFKA__SASL_PASSWORD"] == {"name": "orders-kafka", "key": "password"}
    assert variables["HEADRACE_ZOOKEEPER__PASSWORD"] == {
        "name": "orders-zookeeper",
        "key": "password",
    }
    assert "password" not in service_toml(made)


def test_credentials_of_the_store_are_files_that_may_change():
    [spec] = [
        each["spec"]["template"]["spec"]
        for each in manifests(template("-f", SECURED))
        if each["kind"] == "StatefulSet"
    ]
    [container] = spec["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    for name in ("access_key_id", "secret_access_key"):
        file = variables[f"HEADRACE_STORAGE__{name.upper()}__FILE"]
        assert file == f"/etc/headrace-storage/{name}"
    assert {each["name"] for each in container["volumeMounts"]} >= {"storage"}
    assert {"name": "storage", "secret": {"secretName": "orders-store", "defaultMode": 0o440}} in (
        spec["volumes"]
    )


def test_cloud_identity_needs_no_secret_or_volume():
    account = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/orders"}}
    storage = {"warehouse": "s3://lake/orders"}
    values = {"config": {"storage": storage}, "serviceAccount": account}
    made = list(rendered(values, base=SMALLEST))
    assert only(made, "ServiceAccount")["metadata"]["annotations"] == account["annotations"]
    spec = only(made, "StatefulSet")["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == only(made, "ServiceAccount")["metadata"]["name"]
    assert {each["name"] for each in spec["volumes"]} == {"config", "tmp", "pipeline"}
    [container] = spec["containers"]
    assert not [each for each in container["env"] if "STORAGE" in each["name"]]


@pytest.mark.parametrize(
    ("storage", "port"),
    [
        ({"warehouse": "s3://lake"}, 443),
        ({"warehouse": "s3://lake", "endpoint": "http://store"}, 80),
        ({"warehouse": "s3://lake", "endpoint": "http://store:9000/"}, 9000),
        ({"warehouse": "/data/warehouse"}, None),
    ],
)
def test_the_tables_store_is_let_out(storage, port):
    made = rendered({"config": {"storage": storage}}, base=SMALLEST)
    rules = only(made, "NetworkPolicy")["spec"]["egress"]
    ports = {each["port"] for rule in rules for each in rule["ports"]}
    assert ports - {53, 9092, 9093, 2181} == (set() if port is None else {port})


@pytest.mark.parametrize(
    ("drain", "patience"), [(None, 60), (25, 60), (0.5, 11), (40.5, 91), (3600, 7210)]
)
def test_a_pod_has_more_patience_than_twice_the_drain(drain, patience):
    config = {} if drain is None else {"config": {"pipeline": {"drain_seconds": drain}}}
    spec = only(rendered(config, base=SMALLEST), "StatefulSet")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == patience


AUTOSCALED = {"autoscaling": {"enabled": True, "serverAddress": "http://p:9090"}}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"terminationGracePeriodSeconds": 25}, "must be above drain_seconds"),
        ({"config": {"kafka": {"bootstrap.servers": None}}}, '"bootstrap.servers" is needed'),
        ({"config": {"zookeeper": {"hosts": ""}}}, '"hosts" is needed'),
        ({"config": {"pipeline": {"engine": "spark"}}, **AUTOSCALED}, "scale Spark's executors"),
        ({"autoscaling": {"enabled": True}}, "serverAddress is needed"),
        ({"autoscaling": {**AUTOSCALED["autoscaling"], "minReplicas": 9}}, "below minReplicas"),
        ({"existingConfig": {"configMap": "mine"}}, "give one of them"),
        ({"pipeline": {"existingConfigMap": "mine"}}, "give one of them"),
        ({"kafka": {"tls": {"existingSecret": "mine"}}}, "tls.enabled is false"),
        ({"zookeeper": {"tls": {"enabled": True, "certKey": "a"}}}, "belong together"),
        ({"storage": {"caKey": "ca.crt"}}, "storage.existingSecret is not"),
        ({"topology": "orders"}, "topology"),
        ({"replica": 3}, "replica"),
    ],
    ids=str,
)
def test_helm_refuses(values, why):
    assert why in refusal(values, base=SMALLEST)


def test_chart_adds_nothing_to_a_foreign_configuration():
    assert "the chart cannot add to it" in refusal(
        {"sparkOnKubernetes": {"enabled": True}}, base=EXTRA
    )


def test_keda_sets_the_replicas_if_enabled():
    made = manifests(template("-f", SECURED))
    assert "replicas" not in only(made, "StatefulSet")["spec"]
    (trigger,) = only(made, "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["query"] == (
        'sum(headrace_partition_lag_records{namespace="prod",pod=~"orders-headrace-[0-9]+"})'
    )
    assert trigger["metadata"]["threshold"] == "100000"
    assert only(manifests(template("-f", SMALLEST)), "StatefulSet")["spec"]["replicas"] == 2


def test_network_allows_dns_and_configured_ports_only():
    policy = only(manifests(template("-f", SMALLEST)), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert not policy["ingress"]
    assert [sorted({port["port"] for port in each["ports"]}) for each in policy["egress"]] == [
        [53],
        [9092, 9093],
        [2181],
    ]


@pytest.mark.parametrize(
    ("values", "image", "memory"),
    [
        ({}, "headrace:{version}-slim", "1Gi"),
        ({"spark": True}, "headrace:{version}", "3Gi"),
        ({"config": {"pipeline": {"engine": "spark"}}}, "headrace:{version}", "3Gi"),
        ({"sparkOnKubernetes": {"enabled": True}}, "headrace:{version}", "3Gi"),
        ({"image": {"repository": "r/orders", "tag": "1"}}, "r/orders:1", "1Gi"),
        ({"resources": {"limits": {"memory": "5Gi"}}}, "headrace:{version}-slim", "5Gi"),
    ],
    ids=str,
)
def test_image_and_memory_fit_a_jvm_only_if_one_runs(values, image, memory):
    (container,) = only(rendered(values, base=SMALLEST), "StatefulSet")["spec"]["template"]["spec"][
        "containers"
    ]
    (chart,) = manifests((ROOT / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert container["image"] == image.format(version=chart["appVersion"])
    assert container["resources"]["limits"]["memory"] == memory


def test_only_changed_configuration_or_code_restarts_pods():
    def annotations(values: dict) -> dict:
        set_ = only(rendered(values, base=SMALLEST), "StatefulSet")
        return set_["spec"]["template"]["metadata"]["annotations"]

    before = annotations({})
    assert annotations({"replicaCount": 3, "podMonitor": {"enabled": True}}) == before
    config = annotations({"config": {"retries": {"limit": 1}}})
    assert config["checksum/config"] != before["checksum/config"]
    assert config["checksum/pipeline"] == before["checksum/pipeline"]
    code = annotations({"pipeline": {"files": {"orders.py": "other"}}})
    assert code["checksum/pipeline"] != before["checksum/pipeline"]


def test_driver_may_create_executors_in_its_namespace():
    made = list(manifests(template("-f", SPARK)))
    (rule,) = only(made, "Role")["rules"]
    assert rule["resources"] == ["pods", "configmaps", "services", "persistentvolumeclaims"]
    (subject,) = only(made, "RoleBinding")["subjects"]
    driver = only(made, "StatefulSet")["spec"]["template"]["spec"]
    assert subject["name"] == driver["serviceAccountName"] == "orders-headrace"
    assert driver["automountServiceAccountToken"] is True
    conf = tomllib.loads(service_toml(made))["spark"]["conf"]
    executor = conf["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert only(made, "ServiceAccount", suffix=executor)["automountServiceAccountToken"] is False
    assert conf["spark.sql.shuffle.partitions"] == "8"
    assert conf["spark.kubernetes.container.image"] == driver["containers"][0]["image"]
    variables = {each["name"]: each.get("value") for each in driver["containers"][0]["env"]}
    assert variables["HEADRACE_SPARK__CONF__SPARK_DRIVER_HOST"] == (
        "$(POD_NAME).orders-headrace.prod.svc"
    )
    assert only(made, "Service")["spec"]["publishNotReadyAddresses"] is True


def test_rules_and_dashboards_arrive_letter_by_letter(tmp_path):
    chart = tmp_path / "headrace"
    shutil.copytree(ROOT / CHART, chart)
    rules = "groups:\n  - name: lag\n    rules:\n      - alert: Lag\n        expr: up == 0\n"
    rules += '        annotations: {summary: "{{ $labels.topic }} is behind"}\n'
    board = '{"panels": [], "title": "{{topic}} `now`"}\n'
    (chart / "files/rules/lag_alerts.yaml").write_text(rules, encoding="utf-8")
    (chart / "files/dashboards/overview.json").write_text(board, encoding="utf-8")
    text = template("-f", SECURED, chart=chart)
    made = manifests(text)
    rule = only(made, "PrometheusRule", suffix="-lag-alerts")
    assert rule["spec"] == manifests(rules)[0]
    dashboard = only(made, "ConfigMap", suffix="-dashboard-overview")
    assert dashboard["data"] == {"overview.json": board}
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_a_packed_chart_makes_the_same(tmp_path):
    done = run(packaged("helm"), "package", ROOT / CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (packed,) = tmp_path.glob("headrace-*.tgz")
    assert template("-f", SECURED, chart=packed) == template("-f", SECURED)


@pytest.mark.parametrize(("shown", "variable"), [("true", None), ("false", "false")])
def test_error_texts_can_be_hidden_on_the_port(shown, variable):
    made = manifests(template("-f", SMALLEST, "--set", f"showErrors={shown}"))
    (container,) = only(made, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables.get("HEADRACE_HTTP__SHOW_ERRORS") == variable
