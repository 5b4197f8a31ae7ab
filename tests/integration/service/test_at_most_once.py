"""At most once on a real broker and ZooKeeper: a reader that is killed repeats nothing."""

import json
import random
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance import stored
from tests.conftest import MakeTopic
from tests.support.patience import seconds, until

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[3]
PARTITIONS = 2
RECORDS = 10_000  # of each partition
WINDOW = 500
KILLS = 4
SECONDS = seconds(60.0)


def test_kill_9_at_random_moments_repeats_nothing_and_loses_no_more_than_the_windows(
    kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, topic: MakeTopic, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    rng = random.Random(seed)
    name = topic(partitions=PARTITIONS)
    _fill(kafka, name)
    notes = tmp_path / "notes"
    notes.touch()
    root = f"/{uuid.uuid4().hex[:8]}"
    facts = {
        "kafka": kafka.address,
        "zookeeper": zookeeper.address,
        "root": root,
        "topic": name,
        "notes": str(notes),
        "max_pending": WINDOW,
        "records_per_second": 8000.0,
    }
    for _ in range(KILLS):
        wanted = notes.stat().st_size + rng.randrange(1, 20_000)
        child = _start(facts)
        try:
            until(
                f"{wanted} bytes of notes",
                lambda child=child, wanted=wanted: (  # type: ignore[misc]
                    notes.stat().st_size >= wanted or child.poll() is not None
                ),
            )
        finally:
            child.kill()
            child.wait(SECONDS)
        emitted = _emitted(notes)
        with stored.client(zookeeper.address) as client:
            offsets = stored.read(client, f"{root}/p/{name}")
        for partition, offset in emitted:
            assert offset < offsets[partition], "it was emitted before it was stored"
    last = _start(facts)
    try:
        assert last.wait(SECONDS) == 0
    finally:
        last.kill()
        last.wait(SECONDS)
    emitted = _emitted(notes)
    assert max(emitted.values()) == 1
    for partition in range(PARTITIONS):
        missing = RECORDS - sum(1 for number, _offset in emitted if number == partition)
        print(f"partition {partition}: {missing} records are lost")  # noqa: T201
        assert 0 <= missing <= KILLS * WINDOW


def _fill(kafka: EmbeddedKafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 20})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(topic, b"%d" % number, partition=partition)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(SECONDS) == 0


def _start(facts: dict[str, Any]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.worlds.emitting", json.dumps(facts)]
    return subprocess.Popen(command, cwd=REPOSITORY)


def _emitted(notes: Path) -> Counter[tuple[int, int]]:
    """How often each record was emitted; the last line may be cut off."""
    lines = notes.read_bytes().split(b"\n")[:-1]
    pairs = (line.split() for line in lines)
    return Counter((int(partition), int(offset)) for partition, offset in pairs)
