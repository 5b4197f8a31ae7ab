"""Java, PySpark's jars and ports, without a server."""

import socket

import pytest

from service.devservers.java import (
    JavaMissing,
    SparkJarsMissing,
    find_java,
    java_command,
    pyspark_jars,
)
from service.devservers.process import HOST, connects, free_ports, is_free


def fake_java(home, version):
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_precedes_the_path(monkeypatch, tmp_path):
    java = fake_java(tmp_path / "home", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert find_java() == java
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == other


@pytest.mark.parametrize(("version", "said"), [("11.0.2", "11"), ("1.8.0_402", "8")])
def test_old_java_is_rejected_with_its_version(monkeypatch, tmp_path, version, said):
    java = fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="expected Java 17 or newer") as caught:
        find_java()
    assert f"{java} (from JAVA_HOME) is version {said}" in str(caught.value)


def test_missing_java_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="has no bin/java"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="PATH has no java"):
        find_java()


def test_pyspark_jars_are_found_by_artifact():
    names = [path.name for path in pyspark_jars("ivy", "zookeeper", "zookeeper-jute")]
    assert [name.rsplit("-", 1)[0] for name in names] == ["ivy", "zookeeper", "zookeeper-jute"]
    with pytest.raises(SparkJarsMissing, match="no-such-thing"):
        pyspark_jars("no-such-thing")


def test_command_line_has_flags_before_the_class(tmp_path):
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    command = java_command(
        tmp_path / "java", "x.Main", jars, heap_mb=64, flags=["-Da=b"], arguments=["c"]
    )
    assert command[-4:] == ["-cp", f"{tmp_path}/a.jar:{tmp_path}/b.jar", "x.Main", "c"]
    assert {"-Xmx64m", "-Da=b"} < set(command[:-4])


def test_free_ports_lie_below_those_of_outgoing_connections():
    chosen = free_ports(3)
    assert len(set(chosen)) == 3
    assert all(1024 < port < 32_768 for port in chosen)


def test_used_port_is_not_free():
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert (is_free(port), connects(port)) == (False, True)
    assert (is_free(port), connects(port)) == (True, False)
