import pytest

from service.devservers.java import (
    JavaMissing,
    SparkJarsMissing,
    find_java,
    java_command,
    pyspark_jars,
)


def fake_java(home, version):
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_goes_before_the_path(monkeypatch, tmp_path):
    java = fake_java(tmp_path / "home", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert find_java() == java
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == other


@pytest.mark.parametrize(("version", "said"), [("11.0.2", "11"), ("1.8.0_402", "8")])
def test_an_old_java_is_refused_with_its_version(monkeypatch, tmp_path, version, said):
    java = fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing) as caught:
        find_java()
    assert f"{java} (from JAVA_HOME) is version {said}" in str(caught.value)
    assert "Java 17 or newer" in str(caught.value)


def test_no_java_at_all_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="PATH has no java"):
        find_java()


def test_a_java_home_without_java_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="has no bin/java"):
        find_java()


def test_pysparks_jars_are_found_by_their_artifact():
    names = [path.name for path in pyspark_jars("ivy", "zookeeper", "zookeeper-jute")]
    assert [name.rsplit("-", 1)[0] for name in names] == ["ivy", "zookeeper", "zookeeper-jute"]
    with pytest.raises(SparkJarsMissing, match="no-such-thing"):
        pyspark_jars("no-such-thing")


def test_a_command_line_has_flags_before_the_class_and_arguments_after(tmp_path):
    command = java_command(
        tmp_path / "java",
        "x.Main",
        [tmp_path / "a.jar", tmp_path / "b.jar"],
        heap_mb=64,
        flags=["-Da=b"],
        arguments=["c"],
    )
    at = command.index("x.Main")
    assert command[at + 1 :] == ["c"]
    assert "-Xmx64m" in command[:at]
    assert command[at - 2 : at] == ["-cp", f"{tmp_path}/a.jar:{tmp_path}/b.jar"]
