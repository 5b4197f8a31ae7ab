import pytest

from service.jars.lock import (
    LOCK_FILE,
    Coordinate,
    Lock,
    LockMalformed,
    UnknownSet,
    parse_lock,
    read_lock,
)
from service.jars.relock import ROOTS

HASH = "0" * 64


def test_the_lock_file_parses_and_is_written_as_it_would_be_again():
    assert str(read_lock()) == LOCK_FILE.read_text(encoding="utf-8")


def test_the_lock_file_names_no_address():
    text = LOCK_FILE.read_text(encoding="utf-8")
    assert "://" not in text
    assert "www." not in text


def test_the_lock_file_holds_every_set_that_is_locked_with_its_roots():
    lock = read_lock()
    assert lock.set_names == sorted(ROOTS)
    for name, root in ROOTS.items():
        members = {jar.coordinate for jar in lock.members(name)}
        assert members >= set(root.coordinates)
        assert root.transitive or members == set(root.coordinates)


def test_a_set_holds_one_version_of_each_artifact():
    lock = read_lock()
    for name in lock.set_names:
        artifacts = [jar.coordinate[:2] for jar in lock.members(name)]
        assert len(artifacts) == len(set(artifacts))


def test_the_broker_has_a_scala_library_of_its_own():
    members = read_lock().members("kafka-broker")
    assert "scala-library" in {jar.coordinate.artifact for jar in members}


def test_an_unknown_set_is_refused_with_the_known_ones():
    with pytest.raises(UnknownSet, match=r"'flink'.*delta, iceberg, iceberg-jdbc, kafka-broker"):
        read_lock().members("flink")


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
    with pytest.raises(LockMalformed, match=r"jars\.lock:2") as caught:
        parse_lock(f"# comment\n{line}\n")
    assert caught.value.found == line


def test_lines_are_sorted_by_set_and_coordinate():
    lines = [
        f"b:b:2 sha256:{HASH} delta",
        f"b:b:1 sha256:{HASH} kafka-broker",
        f"a:z:1 sha256:{HASH} delta",
    ]
    lock = parse_lock("\n".join(lines))
    assert str(lock).splitlines() == [lines[2], lines[0], lines[1]]
    assert Lock(reversed(lock.jars)).jars == lock.jars
    assert lock.jars[0].coordinate == Coordinate("a", "z", "1")
