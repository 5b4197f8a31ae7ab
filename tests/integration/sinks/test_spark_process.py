"""Spark's process as seen by other users, and by other file systems, of its machine."""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sinks.spark.driver import SparkDriver
from tests.support.patience import seconds

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_spark")]

# Secrets, whatever their names look like.
PROPERTIES = {
    "spark.hadoop.fs.s3a.secret.key": "canary-4711",
    "spark.hadoop.lake.pass": "canary-4712",
    "spark.sql.catalog.lake.uri": "jdbc:postgresql://lake/?user=canary-4713",
    "spark.headrace.anything": "canary-4714",
}


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    return tmp_path_factory.mktemp("a place")


@pytest.fixture(scope="module")
def driver(no_spark, temporary):
    """A Spark as users get it, but for its temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        driver = SparkDriver("test", {"spark.driver.memory": "512m"} | PROPERTIES)
        driver.open()
        yield driver
        driver.close()
        assert list(temporary.iterdir()) == []


def every_argument() -> str:
    """The arguments of all processes, as `ps` shows them to every user."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(process.read_text(errors="replace"))
    return "".join(found)


# A client of Spark's RPC in a JVM that has no secret: what any user of the machine can start.
CLIENT = """
import sys
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
jvm = launch_gateway(SparkConf(loadDefaults=False).set("spark.driver.memory", "256m")).jvm
java = jvm.java.lang.Class
spark, scala = jvm.org.apache.spark, jvm.scala
def constant(name):
    return java.forName(name).getField("MODULE$").get(None)
conf = spark.SparkConf(False).set("spark.rpc.askTimeout", "20s")
secrets = spark.SecurityManager(conf, scala.Option.empty(), constant(
    "org.apache.spark.internal.config.package$").AUTH_SECRET_FILE())
rpc = spark.rpc.RpcEnv.create("client", "127.0.0.1", 0, conf, secrets, True)
master = rpc.setupEndpointRef(
    spark.rpc.RpcAddress("127.0.0.1", int(sys.argv[1])), "BlockManagerMaster")
stop = constant("org.apache.spark.storage.BlockManagerMessages$StopBlockManagerMaster$")
print("stopped:", master.askSync(stop, scala.reflect.ClassTag.Any()))
"""


def test_a_client_without_the_secret_cannot_stop_spark(driver):
    port = driver.run(lambda session: session.conf.get("spark.driver.port"), group="port")
    client = subprocess.run(
        [sys.executable, "-c", CLIENT, port],
        capture_output=True, check=False, text=True, timeout=seconds(60),
    )  # fmt: skip
    assert "stopped:" not in client.stdout
    assert "Expected SaslMessage" in client.stderr
    assert driver.run(lambda session: session.range(10).repartition(2).count(), group="job") == 10


def test_no_argument_has_a_secret_and_spark_has_them(driver):
    def found(session: Any) -> tuple[str, list[str]]:
        secret = session._jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
        return secret, [session.sparkContext.getConf().get(name) for name in PROPERTIES]

    secret, values = driver.run(found, group="found")
    assert values == list(PROPERTIES.values())
    hadoop = driver.run(lambda session: session._jsc.hadoopConfiguration(), group="hadoop")
    assert hadoop.get("lake.pass") == "canary-4712"
    arguments = every_argument()
    assert "-Xmx512m" in arguments
    assert secret not in arguments
    assert "canary-" not in arguments


def test_local_file_system_is_the_one_that_s3a_buffers_through(driver):
    """S3A writes its blocks to local disk first, and casts what `getLocal` returns."""

    def check(session: Any) -> None:
        conf = session._jsc.hadoopConfiguration()
        session._jvm.org.apache.hadoop.fs.FileSystem.getLocal(conf)
        assert conf.get("fs.file.impl") is None

    driver.run(check, group="check")


def test_files_of_a_killed_jvm_are_removed(driver, temporary):
    def folders(session: Any) -> set[Path]:
        java = session._jvm
        files = java.org.apache.spark.SparkFiles.getRootDirectory()
        return {Path(java.java.lang.System.getProperty("java.io.tmpdir")), Path(files)}

    found = driver.run(folders, group="folders")
    home = driver._jvm._home.path
    assert {path for path in found if not path.is_relative_to(home)} == set()
    driver._jvm.process.kill()
    driver._jvm.process.wait()
    assert driver.run(lambda session: session.range(10).count(), group="count") == 10
    assert not home.exists()
    assert len(list(temporary.iterdir())) == 1
