import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from partition.records import Partition
from partition.replicas.balance import Member
from partition.replicas.heartbeat import encode_member, replica_path
from tests.support.patience import Limit
from tests.support.places import Folder, ended, nodes_of, publish

pytestmark = pytest.mark.integration

RECORDS = 5  # in each of two partitions
WHY = "a test of größe"


class Place(Folder):
    def __init__(self, client, *arguments):
        super().__init__(*arguments)
        self.client = client

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

        with self.started(*words) as process:
            yield until
            _, err = ended(process, signal.SIGINT)
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
            publish(kafka.address, name, ["1"], partition=number, timestamp=1_700_000_000_000 + at)
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


def test_resumed_replica_reads_from_the_moved_offsets(place):
    place.configure('[replicas]\nname = "a"\n')
    reset = ("offsets", "reset", "flow:topology", "--to", "earliest", "--why", WHY)

    def committed(facts):
        return [each["committed"] for each in facts["partitions"].values()]

    with place.watched() as until, place.started("run", "flow:topology", "--json") as process:
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
        out, err = ended(process, signal.SIGTERM)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["read"] == 4 * RECORDS
