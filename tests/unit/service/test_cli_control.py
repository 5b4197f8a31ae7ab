"""`headrace pause`, `resume`, `drain`, `rebalance`: what stands in `@control`, and is printed."""

import json
import sys

import pytest

from partition.errors import StoreCorrupt
from partition.replicas.plan import Control, Note
from service.cli import main as main_module
from service.cli import replicas as module
from service.cli.common import moment, whoami
from service.cli.replicas import (
    KEPT,
    Change,
    changes_path,
    decode_changes,
    with_change,
)
from tests.support import commands
from tests.support.commands import NOTE, TARGET, FileSink, NodesInMemory

AT = 1_800_000_000_000
ME = "op@shell"


@pytest.fixture
def nodes():
    return NodesInMemory()


@pytest.fixture
def headrace(nodes, tmp_path, monkeypatch, capsys):
    """Run a command in this process over `nodes`; its exit code, standard output and error."""
    config = tmp_path / "service.toml"
    config.write_text('[kafka]\n"bootstrap.servers" = "-"\n[zookeeper]\nhosts = "-"\n')
    monkeypatch.setattr(commands, "topology", commands.topology_of([FileSink("a")]))
    monkeypatch.setattr(module, "replica_nodes", nodes.opened)
    monkeypatch.setattr(module, "whoami", lambda: ME)
    monkeypatch.setattr(module, "now_ms", lambda: AT)
    monkeypatch.setenv("COLUMNS", "160")

    def headrace(name, *words):
        line = ["headrace", name, TARGET, *words, "--config", str(config)]
        monkeypatch.setattr(sys, "argv", line)
        code = main_module.main()
        return code, *capsys.readouterr()

    return headrace


def facts_of(out):
    return json.loads(out.splitlines()[-1])


def test_a_pause_is_kept_with_who_and_why_and_ends_with_resume(headrace, nodes):
    nodes.register("a")
    code, out, _ = headrace("pause", "--why", "a new release", "--json")
    assert code == 0
    paused = {"by": ME, "why": "a new release", "at_ms": AT}
    assert facts_of(out) == {
        "pipeline": "tables", "control": "/headrace/tables/@control",
        "paused": paused, "drained": {}, "rebalance": 0, "replicas": ["a"],
    }  # fmt: skip
    assert nodes.pipeline.control() == Control(paused=Note(**paused))
    code, out, _ = headrace("resume", "--json")
    assert (code, facts_of(out)["paused"]) == (0, None)
    assert nodes.pipeline.control() == Control()


def test_a_pause_of_what_is_paused_says_who_it_was(headrace, nodes):
    nodes.put_control(Control(paused=NOTE))
    code, out, _ = headrace("pause", "--why", "me too")
    assert code == 0
    assert "paused by ada@desk since 2023-11-14 22:13:20 UTC: a new release" in out
    assert nodes.pipeline.control().paused == NOTE


def test_resuming_what_is_not_paused_changes_nothing_else(headrace, nodes):
    nodes.put_control(Control(drained={"a": NOTE}, rebalance=3))
    code, out, _ = headrace("resume")
    assert code == 0
    assert out.splitlines() == [
        "not paused",
        "replica a is drained by ada@desk since 2023-11-14 22:13:20 UTC: a new release",
        "rebalances asked for: 3",
        "registered replicas of tables: none",
    ]
    assert nodes.pipeline.control() == Control(drained={"a": NOTE}, rebalance=3)


def test_a_replica_is_drained_until_that_is_undone(headrace, nodes):
    for name in ("a", "b"):
        nodes.register(name)
    code, out, _ = headrace("drain", "a", "--why", "a new disk", "--json")
    note = {"by": ME, "why": "a new disk", "at_ms": AT}
    assert (code, facts_of(out)["drained"]) == (0, {"a": note})
    code, out, _ = headrace("drain", "a", "--why", "again", "--json")
    assert (code, facts_of(out)["drained"]) == (0, {"a": note})
    nodes.leave("a")  # it can be undone all the same
    code, out, _ = headrace("drain", "a", "--undo", "--json")
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
def test_a_drain_that_cannot_be_is_wrong_usage_and_says_what_can(headrace, nodes, words, said):
    for name in ("b", "a"):
        nodes.register(name)
    code, _, err = headrace("drain", *words)
    assert code == 2
    assert said in " ".join(err.replace("│", " ").split())
    assert nodes.pipeline.control() == Control()


def test_each_rebalance_is_another_request(headrace, nodes):
    nodes.put_control(Control(paused=NOTE, rebalance=3))
    code, out, _ = headrace("rebalance", "--json")
    assert (code, facts_of(out)["rebalance"]) == (0, 4)
    assert nodes.pipeline.control() == Control(paused=NOTE, rebalance=4)


@pytest.mark.parametrize(
    "words", [["pause", "--why", "x"], ["resume"], ["rebalance"], ["drain", "a", "--undo"]]
)
def test_what_stands_there_and_cannot_be_read_is_not_overwritten(headrace, nodes, words):
    nodes.put(nodes.pipeline.control_path, b"[")
    code, out, err = headrace(*words)
    assert (code, out) == (1, "")
    assert err.startswith("headrace: /headrace/tables/@control")
    assert nodes.nodes[nodes.pipeline.control_path].data == b"["


def test_a_zookeeper_that_does_not_answer_is_one_line_and_1(headrace, nodes):
    nodes.away = True
    code, out, err = headrace("pause", "--why", "x")
    assert (code, out, len(err.splitlines())) == (1, "", 1)


def test_the_newest_changes_are_kept_each_once():
    path = changes_path("/headrace/tables/@replicas")
    assert path == "/headrace/tables/@changes"
    data = None
    changes = [Change(at, ME, "x", "orders[0]", at - 1, at) for at in range(KEPT + 5)]
    for change in changes:
        data = with_change(path, data, change)
        assert with_change(path, data, change) == data  # its reply was lost
    assert decode_changes(path, data) == changes[-KEPT:]
    assert json.loads(data)[0] == {
        "at_ms": 5, "by": ME, "why": "x", "partition": "orders[0]", "from": 4, "to": 5,
    }  # fmt: skip


def test_a_moment_is_told_in_utc_whatever_the_number():
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(10**30) == f"{10**30} ms"


def test_whoever_gives_a_command_has_a_name(monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    assert whoami().startswith("ada@")
    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert whoami().startswith("1234@")


@pytest.mark.parametrize("data", [b"?", b"{}", b'[{"at_ms": 1}]', b"\xff", b"[" * 10_000])
def test_changes_that_cannot_be_read_are_not_overwritten(data):
    with pytest.raises(StoreCorrupt, match="/@changes"):
        with_change("/p/@changes", data, Change(1, ME, "x", "orders[0]", None, 1))
