"""What an operator sees of transactions, and does with files, around a crash: on real servers."""

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from service.failpoints import VARIABLE
from tests.support import fork_server
from tests.support.patience import seconds

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[3]
TOPOLOGY = "tests.support.numbers_topology:topology"
RECORDS = 2_000
PARTITIONS = 2
SECONDS = seconds(120.0)
TRIES = 5  # the commit may have had all that was open; then nothing is behind it


class Place:
    """A topic of numbers, and a pipeline that writes them into a table."""

    def __init__(self, kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, folder: Path) -> None:
        self.topic = f"numbers-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.kafka = kafka
        kafka.create_topic(self.topic, PARTITIONS)
        self.config = folder / "service.toml"
        self.config.write_text(f"""
[kafka]
"bootstrap.servers" = "{kafka.address}"
[zookeeper]
hosts = "{zookeeper.address}"
root = "/{self.topic}"
session_timeout_seconds = 8.0
[storage]
warehouse = "{folder / "warehouse"}"
[pipeline]
max_pending = 600
chunk_records = 100
commit_interval_seconds = 0.05
[transactions]
plan_records = 100
""")

    def publish(self, first: int, end: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self.kafka.address, "enable.idempotence": True, "log_level": 3}
        )
        for number in range(first, end):
            producer.produce(self.topic, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(SECONDS) == 0

    def headrace(self, *words: str, failpoint: str = "") -> tuple[int, dict[str, Any]]:
        """Run a command on the pipeline; its exit code, and its facts."""
        environment = {"NUMBERS": self.topic}
        if failpoint:
            environment[VARIABLE] = failpoint
        group = words[:2] if words[0] == "tables" else words[:1]
        rest = words[len(group) :]
        words = (*group, TOPOLOGY, *rest, "--config", str(self.config), "--json")
        ran = fork_server.headrace(*words, cwd=REPOSITORY, env=environment)
        print(ran.stderr[-3_000:])  # noqa: T201 - pytest shows it when the test fails
        lines = ran.stdout.splitlines()
        return ran.returncode, json.loads(lines[-1]) if lines else {}

    def numbers(self) -> Counter[int]:
        code, facts = self.headrace("tables", "files", "numbers")
        assert code == 0
        rows = (pq.ParquetFile(file).read()["number"].to_pylist() for file in facts["files"])
        return Counter(number for each in rows for number in each)


def test_operator_sees_replays_and_compacts_files_in_between(
    kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """What is foretold comes true, and a compaction changes neither rows nor transactions."""
    place = Place(kafka, zookeeper, tmp_path)
    published, replayed = 0, []
    for _ in range(TRIES):
        place.publish(published, published + RECORDS)
        published += RECORDS
        killed = "sink_after_commit:3:kill"
        assert place.headrace("run", "--until-caught-up", failpoint=killed)[0] < 0
        code, before = place.headrace("status", "--sinks")
        assert code == 0
        assert before["reliability"] == "exactly-once"
        lines = before["partitions"].values()
        done = [txid for line in lines for txid in line["restart"]["done"]]
        replayed = [txid for line in lines for txid in line["restart"]["replayed"]]
        assert done, "the commit after which it was killed"
        if replayed:
            break
    assert replayed, "what was open behind it"
    for line in lines:
        txids = [each["txid"] for each in line["open"]]
        assert sorted(line["restart"]["done"] + line["restart"]["replayed"]) == txids
        last = (line["restart"]["done"] or [line["committed_txid"]])[-1]
        assert line["sinks"]["numbers"]["txid"] == last
    there = place.numbers()
    code, facts = place.headrace("tables", "compact")
    assert code == 0
    assert facts["sinks"]["numbers"]["outcome"] == "compacted"
    assert place.numbers() == there
    code, still = place.headrace("status", "--sinks")
    assert code == 0
    for name, line in before["partitions"].items():
        for key in ("committed", "open", "sinks", "restart"):
            assert still["partitions"][name][key] == line[key]
    code, account = place.headrace("run", "--until-caught-up")
    assert code == 0
    assert account["rows"] == published - there.total()
    assert place.numbers() == Counter(range(published))
    code, after = place.headrace("status", "--sinks")
    assert all(line["open"] == [] for line in after["partitions"].values())
    assert all(line["restart"]["halts"] is None for line in after["partitions"].values())
