import time

import pytest

from partition.records import Partition
from tests.acceptance import processes
from tests.support.kafka import numbers
from tests.support.service import Running

pytestmark = pytest.mark.faults
AVAILABLE = "headrace_service_kafka_available_state"
RESTARTS = 3
AWAY = "Kafka is away"
NOTICED_SECONDS = 15.0  # what a broker owes is looked at every two seconds, for five and a half


def is_away(running: Running) -> bool:
    return running.figure(AVAILABLE) == 0 and AWAY in running.problems


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_broker_that_restarts_again_and_again_repeats_nothing(own, serve, end):
    """Promise 15; Faults K01: not ready while it is away, and reading on once it is back."""
    topic = own.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    serving = serve(topic, own)
    count = 0
    with serving.runs() as running:
        for _ in range(RESTARTS):
            own.append(a, numbers(500, count))
            own.append(b, [b"bad"])
            count += 500
            running.until("it has begun", lambda: running.of("emitted_offset", topic, 0) > 0)
            getattr(own.kafka, end)()
            running.until("Kafka is away", lambda: is_away(running))
            own.kafka.open()
            running.until("ready", lambda: not running.problems)
        running.committed(topic, {0: count, 1: RESTARTS})
        account = running.end()
    assert serving.offsets(0) == list(range(count))
    assert account.problems() == []
    assert {letter["headrace.offset"] for letter in serving.letters()} == {"0", "1", "2"}
    assert serving.events("partition_halted") == []


def test_frozen_broker_is_waited_for_beyond_client_timeouts(own, serve):
    """Promise 15; Faults K02: the client tells nothing; requests and connections have ended."""
    topic = own.topic()
    a = Partition(topic, 0)
    own.properties["socket.timeout.ms"] = 10_000
    serving = serve(topic, own)
    with serving.runs() as running:
        own.append(a, numbers(100))
        running.committed(topic, {0: 100})
        running.until("ready", lambda: not running.problems)
        processes.freeze(own.kafka.pid)
        frozen = time.monotonic()
        running.until("it is noticed", lambda: is_away(running), NOTICED_SECONDS)
        running.until(
            "connections have ended, and new ones are not answered",
            lambda: time.monotonic() - frozen > 40 or own.kafka.pid == 0,
        )
        assert is_away(running), "a connection that is made is no answer"
        processes.thaw(own.kafka.pid)
        running.until("ready", lambda: not running.problems)
        own.append(a, numbers(100, 100))
        running.committed(topic, {0: 200})
        account = running.end()
    assert serving.offsets(0) == list(range(200))
    assert account.problems() == []
    assert serving.events("partition_halted") == []
