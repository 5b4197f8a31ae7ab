"""kill -9 around the commits of sinks without Spark: every row is in each of them once."""

import os
import random
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from examples.foreach.target import SqliteOrders
from service.embedded.kafka import EmbeddedKafka
from service.embedded.zookeeper import EmbeddedZooKeeper
from service.failpoints import VARIABLE
from tests.worlds.committed import committed_values
from topology.sink import SinkContext

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[3]
RECORDS = 8_000
PARTITIONS = 2
SECONDS = 120.0
PLACES = ("sink_before_commit", "sink_inside_commit", "sink_after_commit", "sink_after_fence")


def test_every_row_is_in_both_sinks_once_wherever_the_process_is_killed(
    kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Promise 9. Storm 45."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    rng = random.Random(seed)
    source = f"exact-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(source, PARTITIONS)
    kafka.create_topic(f"{source}.out", PARTITIONS)
    _fill(kafka, source)
    config = tmp_path / "service.toml"
    config.write_text(_toml(kafka, zookeeper, source))
    environment = {**os.environ, "SOURCE": source, "ORDERS_DB": str(tmp_path / "orders.db")}
    for place in PLACES:
        passes = 1 if place == "sink_after_fence" else rng.randint(2, 8)
        ended = _run(config, environment | {VARIABLE: f"{place}:{passes}:kill"}, tmp_path)
        assert ended < 0, "it was killed"
    assert _run(config, environment, tmp_path) == 0
    expected = dict.fromkeys(range(RECORDS), 1)
    assert Counter(row["number"] for row in SqliteOrders(tmp_path / "orders.db").rows()) == expected
    context = SinkContext("", "", {"bootstrap.servers": kafka.address}, "", None)
    values = committed_values(context, f"{source}.out")
    assert Counter(msgspec.json.decode(value)["number"] for value in values) == expected


def _run(config: Path, environment: dict[str, str], folder: Path) -> int:
    command = [sys.executable, "-m", "headrace", "run", "tests.worlds.exact:topology",
               "--config", str(config), "--until-caught-up"]  # fmt: skip
    with (folder / "log").open("ab") as log:
        child = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
        try:
            return child.wait(SECONDS)
        finally:
            child.kill()
            child.wait(SECONDS)
            print((folder / "log").read_text()[-3000:])  # noqa: T201


def _fill(kafka: EmbeddedKafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, b'{"number": %d, "customer": "c"}' % number)
    assert producer.flush(SECONDS) == 0


def _toml(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, name: str) -> str:
    return f"""
[kafka]
"bootstrap.servers" = "{kafka.address}"

[zookeeper]
hosts = "{zookeeper.address}"
root = "/{name}"
session_timeout_seconds = 8.0

[pipeline]
max_pending = 1_500
chunk_records = 200
commit_interval_seconds = 0.05

[transactions]
plan_records = 300
"""
