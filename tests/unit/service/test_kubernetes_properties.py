"""Spark on Kubernetes is configured by Spark's own properties, and all of them get there."""

from pathlib import Path

import pytest

from service.config.settings import load
from service.wiring import spark_for
from sinks.spark.settings import check, settings

SERVERS = '[kafka]\n"bootstrap.servers" = "one:9092"\n[zookeeper]\nhosts = "one:2181"\n'
MASTER = {"spark.master": "k8s://https://kubernetes.default.svc:443"}
PROPERTIES = {
    **MASTER,
    "spark.driver.host": "orders-driver.pipelines.svc",
    "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - a pod's
    "spark.executor.instances": "8",
    "spark.executorEnv.ORDERS_RATES": "/rates",
    "spark.kubernetes.container.image": "registry.example/orders:1.4.0",
    "spark.kubernetes.container.image.pullSecrets": "one,two",
    "spark.kubernetes.executor.label.app.kubernetes.io/name": "orders",
    "spark.kubernetes.executor.annotation.note": "a = b, c: 'd'",
    "spark.kubernetes.executor.secretKeyRef.TOKEN": "kafka:token",
    "spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName": "warehouse",
}


@pytest.fixture
def session(tmp_path):
    """`session(lines)` returns what a session of a spark engine with these lines is made of."""

    def session(*lines: str) -> dict[str, str]:
        path = tmp_path / "service.toml"
        path.write_text("\n".join([SERVERS, "[spark.conf]", *lines]))
        driver = spark_for([], "orders", load(path), on_spark=True)
        check(driver._conf)
        log4j = Path("/run/log4j2.properties")
        return settings("headrace-orders", driver._conf, [], log4j, ["/app"])

    return session


def test_properties_of_a_file_reach_the_session_unchanged(session):
    found = session(*(f'"{name}" = "{value}"' for name, value in PROPERTIES.items()))
    assert {name: found[name] for name in PROPERTIES} == PROPERTIES


def test_nested_tables_variables_and_other_types_do_so_too(session, monkeypatch):
    name = "spark.kubernetes.executor.podNamePrefix"
    monkeypatch.setenv("HEADRACE_SPARK__CONF", f'{{"{name}": "orders"}}')
    found = session(
        "spark.kubernetes.namespace = 'pipelines'",
        '"spark.kubernetes.executor.deleteOnTermination" = false',
        '"spark.executor.cores" = 2',
    )
    assert found["spark.kubernetes.namespace"] == "pipelines"
    assert found[name] == "orders"
    assert found["spark.kubernetes.executor.deleteOnTermination"] == "false"
    assert found["spark.executor.cores"] == "2"


def test_driver_address_is_left_to_spark(session):
    """Spark finds its own address; 127.0.0.1 would be that of the executor's pod."""
    found = session(*(f'"{name}" = "{value}"' for name, value in MASTER.items()))
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & found.keys()
    assert "127.0.0.1" not in str(found)
