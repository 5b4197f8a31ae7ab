import hashlib
import threading

import pytest

from deploy.relock import ROOTS
from service.jars import resolver
from service.jars.lock import (
    LOCK_FILE,
    Coordinate,
    JarError,
    Lock,
    LockedJar,
    parse_lock,
    read_lock,
)
from service.jars.resolver import default_cache, resolve

CONTENT = {Coordinate("g", name, "1"): name.encode() for name in ("a", "b", "c")}


LOCK = Lock(
    LockedJar("some", coordinate, hashlib.sha256(data).hexdigest())
    for coordinate, data in CONTENT.items()
)


class FakeIvy:
    """Brings what `content` holds, as Ivy would."""

    def __init__(self, content):
        self.content = content
        self.calls = []

    def __call__(self, coordinates, into, *, fetched):
        self.calls.append(list(coordinates))
        found = {}
        for coordinate in coordinates:
            path = into / coordinate.artifact
            path.write_bytes(self.content[coordinate])
            found[coordinate] = path
            fetched(coordinate)
        return found


@pytest.fixture
def ivy(monkeypatch):
    fake = FakeIvy(CONTENT)
    monkeypatch.setattr(resolver, "fetch", fake)
    return fake


def test_missing_jars_are_fetched_once_and_reported_as_they_arrive(ivy, tmp_path):
    seen = []
    paths = resolve("some", cache=tmp_path, lock=LOCK, progress=lambda *told: seen.append(told))
    assert [path.read_bytes() for path in paths] == [b"a", b"b", b"c"]
    assert seen == [("g:a:1", 1, 3), ("g:b:1", 2, 3), ("g:c:1", 3, 3)]
    assert resolve("some", cache=tmp_path, lock=LOCK) == paths
    assert len(ivy.calls) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "g"]
    paths[1].unlink()
    resolve("some", cache=tmp_path, lock=LOCK, progress=lambda *told: seen.append(told))
    assert ivy.calls[1] == [Coordinate("g", "b", "1")]
    assert seen[3:] == [("g:b:1", 3, 3)]


def test_a_changed_file_in_the_cache_is_refused_and_removed(ivy, tmp_path):
    changed = resolve("some", cache=tmp_path, lock=LOCK)[0]
    changed.write_bytes(b"evil")
    with pytest.raises(JarError) as caught:
        resolve("some", cache=tmp_path, lock=LOCK)
    hashes = (hashlib.sha256(content).hexdigest() for content in (b"a", b"evil"))
    assert all(part in str(caught.value) for part in ("g:a:1", *hashes))
    assert not changed.exists()
    assert resolve("some", cache=tmp_path, lock=LOCK)[0].read_bytes() == b"a"


def test_a_fetched_jar_that_differs_never_enters_the_cache(ivy, tmp_path):
    ivy.content = {**CONTENT, Coordinate("g", "b", "1"): b"evil"}
    with pytest.raises(JarError, match="g:b:1"):
        resolve("some", cache=tmp_path, lock=LOCK)
    assert not (tmp_path / "g" / "b-1.jar").exists()
    assert not list(tmp_path.glob(".fetch-*"))


def test_a_failed_fetch_leaves_nothing_behind(monkeypatch, tmp_path):
    def fail(coordinates, into, *, fetched):
        (into / "half").write_bytes(b"")
        raise JarError("no route")

    monkeypatch.setattr(resolver, "fetch", fail)
    with pytest.raises(JarError, match="no route"):
        resolve("some", cache=tmp_path, lock=LOCK)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_two_at_once_fetch_once(ivy, tmp_path):
    results = []
    start = threading.Barrier(4)

    def work():
        start.wait()
        results.append(resolve("some", cache=tmp_path, lock=LOCK))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(ivy.calls) == 1


def test_an_unknown_set_is_refused_before_anything_is_made(ivy, tmp_path):
    with pytest.raises(JarError, match="unknown set of jars: found 'other', expected some"):
        resolve("other", cache=tmp_path / "cache", lock=LOCK)
    assert not (tmp_path / "cache").exists()


def test_the_cache_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADRACE_JAR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "headrace" / "jars"
    monkeypatch.setenv("HEADRACE_JAR_CACHE", str(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"


HASH = "0" * 64


def test_the_lock_file_is_written_as_it_would_be_again_and_names_no_address():
    text = LOCK_FILE.read_text(encoding="utf-8")
    assert str(read_lock()) == text
    assert "://" not in text
    assert "www." not in text


def test_the_lock_file_holds_every_set_with_its_roots_in_one_version_each():
    lock = read_lock()
    assert lock.set_names == sorted(ROOTS)
    for name, root in ROOTS.items():
        members = [jar.coordinate for jar in lock.members(name)]
        assert set(members) >= set(root.coordinates)
        assert root.transitive or set(members) == set(root.coordinates)
        assert len({each[:2] for each in members}) == len(members)
    broker = {jar.coordinate.artifact for jar in lock.members("kafka-broker")}
    assert "scala-library" in broker, "a classpath of its own"


@pytest.mark.parametrize(
    "line",
    [
        f"a:b:1 sha256:{HASH}",
        f"a:b sha256:{HASH} delta",
        f"a:b:1 sha256:{HASH[:-1]} delta",
        f"a:b:1 md5:{HASH} delta",
        f"a:b:1 sha256:{HASH} delta x",
        f"a:b:../1 sha256:{HASH} delta",
        f"../a:b:1 sha256:{HASH} delta",
    ],
)
def test_a_malformed_line_is_refused_with_its_place(line):
    with pytest.raises(JarError, match=r"jars\.lock:2") as caught:
        parse_lock(f"# comment\n{line}\n")
    assert repr(line) in str(caught.value)


def test_lines_are_sorted_by_set_and_coordinate():
    lines = [
        f"b:b:2 sha256:{HASH} delta",
        f"b:b:1 sha256:{HASH} kafka-broker",
        f"a:z:1 sha256:{HASH} delta",
    ]
    lock = parse_lock("\n".join(lines))
    assert str(lock).splitlines() == [lines[2], lines[0], lines[1]]
    assert lock.jars[0].coordinate == Coordinate("a", "z", "1")
