import subprocess
import uuid

import pytest

from partition.records import Partition
from service.devservers.java import java_command
from service.jars.resolver import resolve
from tests.support.kafka import KafkaWorld
from tests.support.patience import seconds

pytestmark = pytest.mark.faults
BYTES_PER_SECOND = 40_000
RECORDS, SIZE = 100, 10_000
SECONDS = 150.0


def limit(world: KafkaWorld, client: str, bytes_per_second: int) -> None:
    """Give a client a quota, by Kafka's own command: its Python client has none for it."""
    arguments = [
        *("--bootstrap-server", world.kafka.address, "--alter"),
        *("--entity-type", "clients", "--entity-name", client),
        *("--add-config", f"consumer_byte_rate={bytes_per_second}"),
    ]
    tool, jars, flags = (
        "kafka.admin.ConfigCommand",
        resolve("kafka-broker"),
        world.kafka.jvm_flags(),
    )
    command = java_command(tool, jars, arguments, heap_mb=128, flags=flags)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds(60))
    assert done.returncode == 0, done.stdout + done.stderr


def test_throttled_service_is_slow_but_ready(world, serve):
    """Promise 15; Faults K16: a broker that makes its clients wait is not away, and it is told."""
    topic = world.topic()
    a = Partition(topic, 0)
    client = f"slow-{uuid.uuid4().hex[:8]}"
    limit(world, client, BYTES_PER_SECOND)
    values = [b"%d " % number + b"x" * SIZE for number in range(RECORDS)]
    # A batch larger than the quota allows in eleven seconds is never given to anybody.
    world.append(a, values, **{"batch.num.messages": 2})
    world.properties["client.id"] = client
    serving = serve(topic, world)
    problems: set[str] = set()
    with serving.runs() as running:
        running.until("ready", lambda: not running.problems)

        def all_is_stored() -> bool:
            problems.update(running.problems)
            return running.of("committed_offset", topic, 0) == RECORDS

        running.until("all is stored", all_is_stored, SECONDS)
        account = running.end()
    assert problems == set()
    assert account.seconds > RECORDS * SIZE / BYTES_PER_SECOND / 2, "it was throttled"
    assert serving.offsets(0) == list(range(RECORDS))
    assert account.problems() == []
    assert serving.events("kafka_throttled")
