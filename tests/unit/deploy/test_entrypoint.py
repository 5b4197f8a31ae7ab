import os
import subprocess

import pytest

from deploy.chart import ROOT
from tests.support.patience import seconds

EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "600m", "SPARK_DRIVER_URL": "spark://driver:7078",
    "SPARK_EXECUTOR_ID": "3", "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9", "SPARK_EXECUTOR_POD_NAME": "orders-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}  # fmt: skip


@pytest.fixture
def programs(tmp_path):
    for name, text in {"tini": 'printf "%s\\n" tini "$@"', "python": "echo /spark/jars"}.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
    return tmp_path


def started(programs, *arguments, **environment):
    done = subprocess.run(
        [ROOT / "deploy/image/entrypoint.sh", *arguments],
        env={"PATH": f"{programs}{os.pathsep}{os.defpath}", **environment},
        capture_output=True, text=True, check=True, timeout=seconds(30),
    )  # fmt: skip
    return done.stdout.splitlines()


def test_it_starts_headrace_with_what_it_is_told(programs):
    assert started(programs, "run", "a:b", "--config", "with a blank") == [
        *("tini", "--", "headrace", "run", "a:b", "--config", "with a blank")
    ]


def test_it_starts_an_executor_with_sparks_options_word_by_word(programs):
    options = {"SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078", "SPARK_JAVA_OPT_1": "-Da=b $HOME *"}
    assert started(programs, "executor", **EXECUTOR, **options) == [
        *("tini", "-s", "--", "java", "-Dspark.driver.port=7078", "-Da=b $HOME *"),
        *("-Xms600m", "-Xmx600m", "-cp", "/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://driver:7078", "--executor-id", "3", "--cores", "2"),
        *("--app-id", "spark-1", "--hostname", "10.0.0.9", "--resourceProfileId", "0"),
        *("--podName", "orders-exec-3"),
    ]


def test_an_executor_that_spark_tells_too_little_is_not_started(programs):
    told = {key: value for key, value in EXECUTOR.items() if key != "SPARK_DRIVER_URL"}
    with pytest.raises(subprocess.CalledProcessError) as raised:
        started(programs, "executor", **told)
    assert "SPARK_DRIVER_URL" in raised.value.stderr


def test_an_executor_is_where_it_may_write(programs, tmp_path):
    """Spark puts the driver's jars into the current folder, and the root is read-only."""
    (programs / "tini").write_text("#!/bin/sh\npwd\n", encoding="utf-8")
    folder = tmp_path / "writable"
    folder.mkdir()
    assert started(programs, "executor", **EXECUTOR, TMPDIR=str(folder)) == [str(folder)]
