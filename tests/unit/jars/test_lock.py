import pytest

from deploy.relock import ROOTS
from service.jars.lock import LOCK_FILE, Coordinate, JarError, parse_lock, read_lock

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
