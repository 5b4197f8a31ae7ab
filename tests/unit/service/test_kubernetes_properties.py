"""Spark on Kubernetes is configured by Spark's own properties, and all of them get there."""

from pathlib import Path

import pytest

from service.config.settings import Config, load
from service.wiring import spark_for
from sinks.spark.settings import check, settings

SERVERS = """
[kafka]
"bootstrap.servers" = "one:9092"
[zookeeper]
hosts = "one:2181"
"""
PROPERTIES = {
    "spark.master": "k8s://https://kubernetes.default.svc:443",
    "spark.submit.deployMode": "client",
    "spark.driver.host": "orders-driver.pipelines.svc",
    "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - a pod's
    "spark.driver.port": "7078",
    "spark.blockManager.port": "7079",
    "spark.executor.instances": "8",
    "spark.pyspark.python": "/opt/venv/bin/python",
    "spark.executorEnv.ORDERS_RATES": "/rates",
    "spark.kubernetes.namespace": "pipelines",
    "spark.kubernetes.container.image": "registry.example/orders:1.4.0",
    "spark.kubernetes.container.image.pullSecrets": "one,two",
    "spark.kubernetes.driver.pod.name": "orders-0",
    "spark.kubernetes.executor.podNamePrefix": "orders",
    "spark.kubernetes.executor.podTemplateFile": "/etc/headrace/executor.yaml",
    "spark.kubernetes.executor.request.cores": "0.5",
    "spark.kubernetes.executor.label.app.kubernetes.io/name": "orders",
    "spark.kubernetes.executor.annotation.note": "a = b, c: 'd'",
    "spark.kubernetes.executor.deleteOnTermination": "false",
    "spark.kubernetes.executor.secretKeyRef.TOKEN": "kafka:token",
    "spark.kubernetes.authenticate.driver.serviceAccountName": "headrace",
    "spark.kubernetes.executor.volumes.persistentVolumeClaim.data.mount.path": "/data",
    "spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName": "warehouse",
}


def of_session(config: Config) -> dict[str, str]:
    """What a session is made of for a spark engine with this configuration."""
    driver = spark_for([], "orders", config, on_spark=True)
    assert driver is not None
    conf = driver._conf
    check(conf)
    return settings("headrace-orders", conf, [], Path("/run/log4j2.properties"), ["/app"])


def test_properties_of_a_file_reach_the_session_unchanged(tmp_path: Path) -> None:
    lines = [f'"{name}" = "{value}"' for name, value in PROPERTIES.items()]
    path = tmp_path / "service.toml"
    path.write_text("\n".join([SERVERS, "[spark.conf]", *lines]))
    found = of_session(load(path))
    assert {name: found[name] for name in PROPERTIES} == PROPERTIES


def test_properties_of_a_table_of_tables_do_so_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "service.toml"
    path.write_text(f"{SERVERS}[spark.conf]\nspark.kubernetes.namespace = 'pipelines'\n")
    monkeypatch.setenv(
        "HEADRACE_SPARK__CONF", '{"spark.kubernetes.executor.podNamePrefix": "orders"}'
    )
    found = of_session(load(path))
    assert found["spark.kubernetes.namespace"] == "pipelines"
    assert found["spark.kubernetes.executor.podNamePrefix"] == "orders"


def test_driver_address_is_left_to_spark(tmp_path: Path) -> None:
    """Spark finds its own address; 127.0.0.1 would be that of the executor's pod."""
    path = tmp_path / "service.toml"
    path.write_text(f'{SERVERS}[spark.conf]\n"spark.master" = "{PROPERTIES["spark.master"]}"\n')
    found = of_session(load(path))
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & found.keys()
    assert "127.0.0.1" not in str(found)


def test_what_is_no_text_in_the_file_is_written_as_java_reads_it(tmp_path: Path) -> None:
    lines = [
        '"spark.kubernetes.executor.deleteOnTermination" = false',
        '"spark.executor.cores" = 2',
    ]
    path = tmp_path / "service.toml"
    path.write_text("\n".join([SERVERS, "[spark.conf]", *lines]))
    found = of_session(load(path))
    assert found["spark.kubernetes.executor.deleteOnTermination"] == "false"
    assert found["spark.executor.cores"] == "2"
