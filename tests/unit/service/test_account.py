import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from headrace import Topology
from service.cli.run import Servers
from service.observability.snapshot import DeadLetterCause, PartitionSummary, RunSummary, Snapshot
from topology.monitoring import RecentFailure

CLOSED = RunSummary(
    read=10, written=6, rows=12, filtered=3, retried=2, dead_lettered=1, unresolved=0, given_up=0,
    lost=0,
    seconds=2.0, halted={},
    partitions={"t-0": PartitionSummary(7, 7, 7), "t-1": PartitionSummary(5, 5, 5)},
    table="/warehouse/t", dead_letters="t.dead", caught_up=True,
)  # fmt: skip
LOSS = "10 records were read but 9 are accounted for"
SHORT = "t-0: committed 5, 2 short of where the log ended"


@pytest.mark.parametrize(
    ("changes", "losses", "problems"),
    [
        ({}, [], []),
        ({"written": 5}, [LOSS], [LOSS]),
        ({"written": 5, "unresolved": 1}, [], ["1 records are unresolved"]),
        ({"partitions": {"t-0": PartitionSummary(5, 7, 7)}}, [], [SHORT]),
        ({"partitions": {"t-0": PartitionSummary(5, 5, 9, goal=5)}}, [], []),
        ({"halted": {"t[1]": "a corrupt record"}}, [], ["t[1] is halted: a corrupt record"]),
    ],
    ids=["closed", "lost", "unresolved", "uncommitted", "beyond the goal", "halted"],
)
def test_summary_names_what_keeps_it_from_closing(changes, losses, problems):
    account = replace(CLOSED, **changes)
    assert (account.losses(), account.problems()) == (losses, problems)


def test_summary_as_json_has_its_keys():
    facts = json.loads(json.dumps(CLOSED.as_json()))
    assert facts["records_per_second"] == 5.0
    assert facts["partitions"]["t-0"] == {
        "committed": 7, "last_completed_offset": 7, "log_end": 7, "goal": None,
    }  # fmt: skip
    assert {"read", "rows", "filtered", "retried", "dead_lettered", "unresolved", "table",
            "dead_letters"} <= facts.keys()  # fmt: skip
    assert replace(CLOSED, seconds=0.0).records_per_second == 0.0
    assert PartitionSummary(5, 5, 9, goal=5).lag == 4


def test_the_three_commonest_causes_of_dead_letters_are_named_with_an_example():
    causes = {("a", "KeyError"): 2, ("b", "ValueError"): 3_000, ("c", "Reject"): 1, ("a", "E"): 9}
    failures = [
        RecentFailure(0.0, "step_failing", "a", "KeyError", text, 1, "flow.py:7")
        for text in ("KeyError: 1", "KeyError: 'id'")
    ]
    told = {"dead_letter_causes": causes, "recent_failures": tuple(failures)}
    snapshot = Snapshot(taken_at=0.0, partitions=(), **told)
    facts = {"seconds": 1.0, "table": None, "dead_letters": "dead", "caught_up": True}
    found = RunSummary.of(snapshot, {}, **facts).dead_letter_causes
    assert list(map(str, found)) == [
        "3,000 in 'b': ValueError",
        "9 in 'a': E",
        "2 in 'a': KeyError: 'id' (at flow.py:7)",
    ]
    assert replace(CLOSED, dead_letter_causes=found).as_json()["dead_letter_causes"][2] == {
        "step": "a", "error_class": "KeyError", "letters": 2, "error": "KeyError: 'id'",
        "error_at": "flow.py:7",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dead", "options", "code"),
    [
        (6, ["--until-caught-up"], 1),
        (6, ["--until-caught-up", "--json"], 1),
        (6, [], 0),
        (5, ["--until-caught-up"], 0),
    ],
)
def test_finite_run_of_mostly_dead_letters_ends_with_1(headrace, monkeypatch, dead, options, code):
    cause = DeadLetterCause("parse", "KeyError", dead, "KeyError: 'id'", "flow.py:7")
    counts = {"written": 10 - dead, "filtered": 0, "dead_lettered": dead}
    summary = replace(CLOSED, dead_letter_causes=(cause,), **counts)
    monkeypatch.setattr("service.cli.run.run_pipeline", lambda *_parts, **_options: summary)
    monkeypatch.setattr("service.cli.common.load_topology", lambda _target: None)
    monkeypatch.setattr("service.cli.common.configured", lambda *_how: None)
    found, out, err = headrace("run", "flow:topology", *options)
    assert (found, f"{dead} of 10 records became dead letters" in err) == (code, code == 1)
    said = f"{dead} in 'parse': KeyError: 'id' (at flow.py:7)"
    assert (said in out) == ("--json" not in options)
    assert (said in err) == (code == 1)


def test_embedded_run_uses_a_configuration_for_all_but_the_servers(headrace, monkeypatch, tmp_path):
    (tmp_path / "f.toml").write_text(
        "[kafka]\nbootstrap.servers = 'far:1'\nmetadata.broker.list = 'far:1'\n"
        "security.protocol = 'SASL_SSL'\n"
        "fetch.min.bytes = 5\n[zookeeper]\nhosts = 'far:2'\nroot = '/mine'\nauth = 'digest'\n"
        "username = 'me'\npassword = 'it'\n[retries]\nlimit = 2\n"
    )
    servers = Servers(SimpleNamespace(address="here:1"), SimpleNamespace(address="here:2"))
    run = Mock(return_value=CLOSED)
    monkeypatch.setattr(Servers, "ensure_topics", lambda *_names: None)
    monkeypatch.setattr("service.cli.run.embedded", lambda *_, **_options: nullcontext(servers))
    monkeypatch.setattr("service.cli.run.run_pipeline", run)
    monkeypatch.setattr("service.cli.common.load_topology", lambda _target: Topology("t"))
    path = str(tmp_path / "f.toml")
    code, _, err = headrace("run", "flow:topology", "--embedded", "--config", path)
    ((_topology, config), _options) = run.call_args
    assert (code, config.retries.limit) == (0, 2)
    assert config.kafka == {
        "bootstrap.servers": "here:1", "metadata.broker.list": "here:1",
        "security.protocol": "plaintext", "fetch.min.bytes": 5,
    }  # fmt: skip
    assert (config.zookeeper.hosts, config.zookeeper.root) == ("here:2", "/mine")
    assert config.zookeeper.security().auth == "none"
    assert f"own Kafka and ZooKeeper are used, without security; all else is from {path}" in err
