"""`headrace pause`, `resume`, `drain`, `rebalance`: the node `@control`, and what is printed."""

import json

import pytest

from partition.errors import StoreCorrupt
from partition.replicas.plan import Control, Note
from service.cli.common import moment, whoami
from service.cli.control import MAX_CHANGES, OffsetChange
from tests.support.commands import NOTE, TARGET, FileSink, NodesInMemory, topology_of
from tests.unit.service.conftest import AT, ME


@pytest.fixture
def nodes():
    return NodesInMemory()


@pytest.fixture
def control(operated, nodes):
    """`control(name, *words)` runs a command over `nodes`."""
    given = operated(nodes, topology_of([FileSink("a")]))
    return lambda name, *words: given(name, TARGET, *words)


def facts_of(out):
    return json.loads(out.splitlines()[-1])


def test_pause_is_recorded_until_resume(control, nodes):
    nodes.register("a")
    code, out, _ = control("pause", "--why", "a new release", "--json")
    assert code == 0
    paused = {"by": ME, "why": "a new release", "at_ms": AT}
    assert facts_of(out) == {
        "pipeline": "tables", "control": "/headrace/tables/@control",
        "paused": paused, "drained": {}, "rebalance": 0, "replicas": ["a"],
    }  # fmt: skip
    assert nodes.pipeline.control() == Control(paused=Note(**paused))
    code, out, _ = control("resume", "--json")
    assert (code, facts_of(out)["paused"]) == (0, None)
    assert nodes.pipeline.control() == Control()


def test_second_pause_keeps_the_first_note(control, nodes):
    nodes.put_control(Control(paused=NOTE))
    code, out, _ = control("pause", "--why", "me too")
    assert code == 0
    assert "paused by ada@desk since 2023-11-14 22:13:20 UTC: a new release" in out
    assert nodes.pipeline.control().paused == NOTE


def test_resume_of_a_running_pipeline_changes_nothing_else(control, nodes):
    nodes.put_control(Control(drained={"a": NOTE}, rebalance=3))
    code, out, _ = control("resume")
    assert code == 0
    assert out.splitlines() == [
        "not paused",
        "replica a is drained by ada@desk since 2023-11-14 22:13:20 UTC: a new release",
        "rebalances asked for: 3",
        "registered replicas of tables: none",
    ]
    assert nodes.pipeline.control() == Control(drained={"a": NOTE}, rebalance=3)


def test_drained_replica_stays_drained_until_undone(control, nodes):
    for name in ("a", "b"):
        nodes.register(name)
    note = {"by": ME, "why": "a new disk", "at_ms": AT}
    for why in ("a new disk", "again"):
        code, out, _ = control("drain", "a", "--why", why, "--json")
        assert (code, facts_of(out)["drained"]) == (0, {"a": note})
    nodes.leave("a")  # it can be undone all the same
    code, out, _ = control("drain", "a", "--undo", "--json")
    assert (code, facts_of(out)["drained"]) == (0, {})


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
    for name in ("b", "a"):
        nodes.register(name)
    code, _, err = control("drain", *words)
    assert code == 2
    assert said in " ".join(err.replace("│", " ").split())
    assert nodes.pipeline.control() == Control()


def test_each_rebalance_is_another_request(control, nodes):
    nodes.put_control(Control(paused=NOTE, rebalance=3))
    code, out, _ = control("rebalance", "--json")
    assert (code, facts_of(out)["rebalance"]) == (0, 4)
    assert nodes.pipeline.control() == Control(paused=NOTE, rebalance=4)


@pytest.mark.parametrize(
    "words", [["pause", "--why", "x"], ["resume"], ["rebalance"], ["drain", "a", "--undo"]]
)
def test_unreadable_control_is_not_overwritten(control, nodes, words):
    nodes.put(nodes.pipeline.control_path, b"[")
    code, out, err = control(*words)
    assert (code, out) == (1, "")
    assert err.startswith("headrace: /headrace/tables/@control")
    assert nodes.nodes[nodes.pipeline.control_path].data == b"["


def test_silent_zookeeper_is_one_line_and_exit_code_1(control, nodes):
    nodes.away = True
    code, out, err = control("pause", "--why", "x")
    assert (code, out, len(err.splitlines())) == (1, "", 1)


def test_newest_changes_are_recorded_once_each(nodes):
    changes = [OffsetChange(at, ME, "x", "t[0]", at - 1, at) for at in range(MAX_CHANGES + 5)]
    for change in changes:
        nodes.pipeline.record(change)
        nodes.pipeline.record(change)  # its reply was lost
    assert nodes.pipeline.changes() == changes[-MAX_CHANGES:]
    assert json.loads(nodes.nodes["/headrace/tables/@changes"].data)[0] == {
        "at_ms": 5, "by": ME, "why": "x", "partition": "t[0]", "from": 4, "to": 5,
    }  # fmt: skip


@pytest.mark.parametrize("data", [b"?", b"{}", b'[{"at_ms": 1}]', b"\xff", b"[" * 10_000])
def test_unreadable_changes_are_not_overwritten(nodes, data):
    nodes.put(nodes.pipeline.changes_path, data)
    with pytest.raises(StoreCorrupt, match="/@changes"):
        nodes.pipeline.record(OffsetChange(1, ME, "x", "orders[0]", None, 1))


def test_moment_is_printed_in_utc():
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(10**30) == f"{10**30} ms"


def test_operator_without_a_name_is_a_number(monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    assert whoami().startswith("ada@")
    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert whoami().startswith("1234@")
