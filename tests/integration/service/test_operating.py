"""Operators' commands with real servers, each in a process of its own: what one asks, all see."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from partition.records import Partition
from partition.replicas.heartbeat import encode_member, replica_path
from partition.replicas.plan import Member
from tests.support.patience import Limit, seconds
from tests.support.places import Folder, nodes_of, publish

pytestmark = pytest.mark.integration

RECORDS = 5  # in each of two partitions
WHY = "a test of größe"


class Place(Folder):
    """A topic with records, a folder with a configuration, and hands in the nodes."""

    def __init__(self, client, *arguments):
        super().__init__(*arguments)
        self.client = client

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *words, "--config", "service.toml"],
            cwd=self.folder,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def watched(self) -> Iterator[Callable[[Callable[[dict[str, Any]], object]], dict[str, Any]]]:
        """`until(said)` returns the first facts of `headrace status --watch` that are so."""
        words = ("status", "flow:topology", "--watch", "--interval", "0.1", "--json")

        def until(said: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
            ends = Limit(60)
            while True:
                facts: dict[str, Any] = json.loads(process.stdout.readline())
                if said(facts):
                    return facts
                assert not ends.passed, facts

        with self.start(*words) as process:
            try:
                yield until
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=seconds(60))
            finally:
                process.kill()
        assert process.returncode == 0, err

    def register(self, name: str, *holds: Partition) -> None:
        member = Member(name, "p", 0, 1, frozenset(holds), "host", 1_700_000_000_000, "0.1.0")
        path = replica_path("/headrace", self.name, name)
        self.client.create(path, encode_member(member), ephemeral=True, makepath=True)


@pytest.fixture
def place(tmp_path, topic, kafka, zookeeper):
    name = topic(partitions=2)
    for number in range(2):
        for at in range(RECORDS):
            publish(kafka, name, ["1"], partition=number, timestamp=1_700_000_000_000 + at)
    with nodes_of(zookeeper) as client:
        yield Place(client, tmp_path, name, kafka.address, zookeeper.address)


def test_next_run_reads_from_offsets_that_were_set(place):
    run = ("run", "flow:topology", "--until-caught-up")
    first, second = f"{place.name}[0]", f"{place.name}[1]"
    assert place.facts(*run)["read"] == 2 * RECORDS
    moved = place.facts("offsets", "set", "flow:topology", f"{place.name}:0=2", "--why", WHY)
    assert (moved["moved"], moved["partitions"][first]["from"]) == (1, RECORDS)
    assert place.facts(*run)["read"] == RECORDS - 2
    at = str(1_700_000_000_003)
    shown = place.facts("offsets", "reset", "flow:topology", "--to", at, "--why", WHY, "--dry-run")
    assert [each["to"] for each in shown["partitions"].values()] == [3, 3]
    place.facts("offsets", "reset", "flow:topology", "--to", at, "--why", WHY)
    assert place.facts(*run)["read"] == 2 * (RECORDS - 3)
    status = place.facts("status", "flow:topology")
    assert [(each["partition"], each["from"], each["to"]) for each in status["changes"]] == [
        (first, RECORDS, 2), (first, RECORDS, 3), (second, RECORDS, 3),
    ]  # fmt: skip
    assert {each["why"] for each in status["changes"]} == {WHY}
    assert status["partitions"][first]["committed"] == RECORDS
    assert (status["lag"], status["replicas"]) == (0, {})


def test_an_offset_beyond_the_log_is_one_line_and_1(place):
    command = ("offsets", "set", "flow:topology", f"{place.name}:0=6", "--why", WHY)
    done = place.headrace(*command)
    assert done.code == 1
    assert f"{place.name}[0]: the log holds 0 to 5, not offset 6" in done.out
    assert done.err.splitlines()[-1] == (
        "headrace: 1 of 1 partitions refused or failed; nothing was moved"
    )
    assert place.facts("status", "flow:topology")["partitions"][f"{place.name}[0]"]["epoch"] is None


def test_a_pause_is_seen_by_everybody_and_lets_offsets_be_moved(place):
    place.register("a", Partition(place.name, 0))
    command = ("offsets", "reset", "flow:topology", "--to", "earliest", "--why", WHY)
    done = place.headrace(*command)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("headrace: the partitions are being consumed by a")
    paused = place.facts("pause", "flow:topology", "--why", WHY)["paused"]
    status = place.facts("status", "flow:topology")
    assert status["paused"] == paused
    assert (paused["why"], "@" in paused["by"]) == (WHY, True)
    assert (status["leader"], status["replicas"]["a"]["holds"]) == ("a", 1)
    assert status["partitions"][f"{place.name}[0]"]["owner"] == "a"
    assert place.facts(*command)["moved"] == 2
    assert place.facts("resume", "flow:topology")["paused"] is None
    assert place.headrace(*command).code == 1


def test_a_drain_and_a_rebalance_are_kept(place):
    place.register("a")
    assert place.headrace("drain", "flow:topology", "b", "--why", WHY).code == 2
    assert list(place.facts("drain", "flow:topology", "a", "--why", WHY)["drained"]) == ["a"]
    assert place.facts("rebalance", "flow:topology")["rebalance"] == 1
    status = place.facts("status", "flow:topology")
    assert (list(status["drained"]), status["rebalance"]) == (["a"], 1)
    done = place.headrace("status", "flow:topology")
    assert (done.code, "a (leader, drained)" in done.out) == (0, True), done.out
    assert place.facts("drain", "flow:topology", "a", "--undo")["drained"] == {}


def test_a_watch_shows_it_again_and_again_until_ctrl_c(place):
    with place.watched() as until:
        assert until(lambda _: True)["replicas"] == {}
        place.register("a")
        assert until(lambda facts: facts["replicas"])["leader"] == "a"


def test_resumed_replica_reads_from_the_moved_offsets(place):
    place.configure('[replicas]\nname = "a"\n')
    reset = ("offsets", "reset", "flow:topology", "--to", "earliest", "--why", WHY)

    def committed(facts):
        return [each["committed"] for each in facts["partitions"].values()]

    with place.watched() as until, place.start("run", "flow:topology", "--json") as process:
        try:
            until(lambda facts: committed(facts) == [RECORDS] * 2)
            assert place.headrace(*reset).code == 1
            place.facts("pause", "flow:topology", "--why", WHY)
            moved = place.facts(*reset)["partitions"]
            assert [each["outcome"] for each in moved.values()] == ["moved"] * 2
            assert committed(until(lambda facts: len(facts["changes"]) == 2)) == [0, 0]
            place.facts("resume", "flow:topology")
            facts = until(lambda facts: committed(facts) == [RECORDS] * 2)
            assert {each["owner"] for each in facts["partitions"].values()} == {"a"}
            assert {each["epoch"] for each in facts["partitions"].values()} == {3}
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=seconds(60))
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["read"] == 4 * RECORDS


def test_servers_that_are_down_are_one_line_and_1(place):
    place.kafka = place.zookeeper = "127.0.0.1:1"
    place.configure()
    done = place.headrace("pause", "flow:topology", "--why", WHY)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("headrace: the offset store does not answer")
    assert "Traceback" not in done.err
