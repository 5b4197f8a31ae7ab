import socket

import pytest

from service.devservers.java import (
    DevServerError,
    JavaMissing,
    SparkJarsMissing,
    find_java,
    java_command,
    pyspark_jars,
)
from service.devservers.process import HOST, connects, free_ports, is_free
from service.devservers.servers import EmbeddedZooKeeper


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


@pytest.mark.parametrize(
    ("version", "home", "path", "said"),
    [
        ("11.0.2", "", "/none", "(from JAVA_HOME) is version 11, expected Java 17 or newer"),
        ("1.8.0_402", "", "/none", "(from JAVA_HOME) is version 8, expected Java 17 or newer"),
        ("none", "", "/none", "(from JAVA_HOME) is without a version"),
        ("21", "/none", "/none", "has no bin/java"),
        ("21", None, "/none", "PATH has no java"),
    ],
)
def test_unusable_java_is_reported(monkeypatch, tmp_path, version, home, path, said):
    fake_java(tmp_path, version)
    monkeypatch.setenv("PATH", path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", f"{tmp_path}{home}")
    with pytest.raises(JavaMissing) as caught:
        find_java()
    assert said in str(caught.value)


def test_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    server = EmbeddedZooKeeper(tmp_path / "file" / "zookeeper")
    with pytest.raises(
        DevServerError, match=r"keep its data in .*/file/zookeeper: Not a dir"
    ) as it:
        server.open()
    assert str(it.value).endswith("Choose a folder that can be written (--state-dir).")


def test_pyspark_jars_are_found_by_artifact():
    names = [path.name for path in pyspark_jars("ivy", "zookeeper", "zookeeper-jute")]
    assert [name.rsplit("-", 1)[0] for name in names] == ["ivy", "zookeeper", "zookeeper-jute"]
    with pytest.raises(SparkJarsMissing, match="no-such-thing"):
        pyspark_jars("no-such-thing")


def test_command_line_has_flags_before_the_class(tmp_path):
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    command = java_command("x.Main", jars, ["c"], heap_mb=64, flags=["-Da=b"])
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
