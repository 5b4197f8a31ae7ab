import pytest

from service.jars.lock import JarError, Lock, LockedJar, read_lock
from service.jars.resolver import resolve

pytestmark = pytest.mark.integration

SMALL = next(
    jar for jar in read_lock().members("delta") if jar.coordinate.artifact == "delta-storage"
)


def test_ivy_fetches_a_jar_by_its_coordinate_alone(tmp_path):
    seen = []
    lock = Lock([SMALL])
    paths = resolve("delta", cache=tmp_path, lock=lock, progress=lambda *told: seen.append(told))
    assert [path.name for path in paths] == ["delta-storage-4.4.0.jar"]
    assert seen == [(str(SMALL.coordinate), 1, 1)]


def test_a_jar_that_does_not_exist_fails_with_what_ivy_said(tmp_path):
    unknown = SMALL.coordinate._replace(version="0.0.0-none")
    with pytest.raises(JarError, match=r"delta-storage;0\.0\.0-none: not found"):
        resolve("delta", cache=tmp_path, lock=Lock([LockedJar("delta", unknown, "0" * 64)]))


def test_an_unreachable_repository_fails_with_what_ivy_said(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS",
        "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Dhttps.nonProxyHosts=",
    )
    with pytest.raises(JarError) as caught:
        resolve("delta", cache=tmp_path, lock=Lock([SMALL]))
    assert "refused" in str(caught.value).lower()
