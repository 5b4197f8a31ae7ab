import json
from unittest.mock import Mock

import pytest

from partition.errors import StoreCorrupt
from partition.replicas.balance import Control
from service.cli.common import signed
from service.cli.control import MAX_CHANGES, OffsetChange
from service.dead_letters.printable import utc_text
from tests.support.commands import NOTE as EARLIER
from tests.support.commands import TARGET, FileSink, NodesInMemory, topology_of
from tests.unit.service.conftest import NOTE, facts_of, words_of

SINCE = "by ada@desk since 2023-11-14 22:13:20 UTC: a new release"
MINE = {"by": NOTE.by, "why": NOTE.why, "at_ms": NOTE.at_ms}
THEIRS = {"by": EARLIER.by, "why": EARLIER.why, "at_ms": EARLIER.at_ms}


@pytest.fixture
def nodes():
    nodes = NodesInMemory()
    for name in ("b", "a"):
        nodes.register(name)
    return nodes


@pytest.fixture
def control(operated, nodes):
    given = operated(nodes, topology_of([FileSink("a")]))
    return lambda name, *words: given(name, TARGET, *words)


@pytest.mark.parametrize(
    ("before", "words", "after"),
    [
        (Control(), ["pause", "--why", NOTE.why], {"paused": MINE}),
        (Control(paused=EARLIER), ["pause", "--why", "me too"], {"paused": THEIRS}),
        (Control(paused=EARLIER, rebalance=3), ["resume"], {"rebalance": 3, "resumed": 1}),
        (Control(drained={"a": EARLIER}), ["resume"], {"drained": {"a": THEIRS}}),
        (Control(), ["drain", "a", "--why", NOTE.why], {"drained": {"a": MINE}}),
        (Control(drained={"a": EARLIER}), ["drain", "a", "--why", "x"], {"drained": {"a": THEIRS}}),
        (Control(drained={"gone": EARLIER}), ["drain", "gone", "--undo"], {}),
        (Control(paused=EARLIER, rebalance=3), ["rebalance"], {"paused": THEIRS, "rebalance": 4}),
    ],
)
def test_request_is_stored_and_printed(control, nodes, before, words, after):
    nodes.put_control(before)
    code, out, _ = control(*words, "--json")
    stored = {"paused": None, "drained": {}, "rebalance": 0, "resumed": 0} | after
    place = {"pipeline": "tables", "control": "/headrace/tables/@control", "replicas": ["a", "b"]}
    assert (code, facts_of(out)) == (0, place | stored)
    node = json.loads(nodes.nodes[nodes.pipeline.control_path].data)
    assert {key: node.get(key) or stored[key] for key in stored} == stored


def test_person_reads_what_is_asked_for(control, nodes):
    nodes.put_control(Control(paused=EARLIER, drained={"a": EARLIER}, rebalance=3))
    assert control("pause", "--why", "x")[1].splitlines() == [
        f"paused {SINCE}", f"replica a is drained {SINCE}", "rebalances asked for: 3",
        "registered replicas of tables: a, b",
    ]  # fmt: skip
    assert control("resume")[1].splitlines()[0] == "not paused"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["c", "--why", "x"], "no replica 'c' is registered; registered: a, b"),
        (["a", "--undo"], "no replica 'a' is drained; drained: none"),
        (["a"], "--why"),
        (["a", "--why", " "], "some words are needed"),
        (["a", "--why", "x" * 501], "500 characters at most"),
        (["a/b", "--why", "x"], "a/b"),
    ],
)
def test_impossible_drain_is_wrong_usage(control, nodes, words, said):
    code, _, err = control("drain", *words)
    assert (code, said in words_of(err)) == (2, True)
    assert nodes.pipeline.control() == Control()


@pytest.mark.parametrize("words", ["pause --why x", "resume", "rebalance", "drain a --undo"])
def test_unreadable_control_is_not_overwritten(control, nodes, words):
    nodes.put(nodes.pipeline.control_path, b"[")
    code, out, err = control(*words.split())
    assert (code, out) == (1, "")
    assert err.startswith("headrace: /headrace/tables/@control")
    assert nodes.nodes[nodes.pipeline.control_path].data == b"["


def test_silent_zookeeper_is_one_line_and_exit_code_1(control, nodes):
    nodes.away = True
    code, out, err = control("pause", "--why", "x")
    assert (code, out, len(err.splitlines())) == (1, "", 1)


def test_newest_changes_are_recorded_once_each(nodes):
    changes = [OffsetChange(at, "me", "x", "t[0]", at - 1, at) for at in range(MAX_CHANGES + 5)]
    for change in changes:
        nodes.pipeline.record(change)
        nodes.pipeline.record(change)  # its reply was lost
    assert nodes.pipeline.changes() == changes[-MAX_CHANGES:]
    assert json.loads(nodes.nodes["/headrace/tables/@changes"].data)[0] == {
        "at_ms": 5, "by": "me", "why": "x", "partition": "t[0]", "from": 4, "to": 5,
    }  # fmt: skip


@pytest.mark.parametrize("data", [b"?", b"{}", b'[{"at_ms": 1}]', b"\xff", b"[" * 10_000])
def test_unreadable_changes_are_not_overwritten(nodes, data):
    nodes.put(nodes.pipeline.changes_path, data)
    with pytest.raises(StoreCorrupt, match="/@changes"):
        nodes.pipeline.record(OffsetChange(1, "me", "x", "orders[0]", None, 1))


def test_any_time_is_printed():
    assert utc_text(0) == "1970-01-01 00:00:00"
    assert utc_text(10**30) == f"{10**30} ms"


def test_operator_without_a_name_is_a_number(monkeypatch):
    nameless = Mock(side_effect=KeyError("getpwuid(): uid not found: 1234"))
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    assert signed("x").by.startswith("ada@")
    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert signed("x").by.startswith("1234@")
