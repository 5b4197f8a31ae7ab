"""What a Kafka client of a sink says goes into the log, and does not flood it."""

import structlog
from confluent_kafka import KafkaError

from sinks.kafka.client import ClientErrorLog

RESOLVE, DOWN = KafkaError._RESOLVE, KafkaError._ALL_BROKERS_DOWN
REFUSED = KafkaError._AUTHENTICATION


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_complaint_that_comes_again_and_again_is_told_every_five_seconds_and_counted():
    clock = Clock()
    complaints = ClientErrorLog("broker_error", "t.dead", clock)
    with structlog.testing.capture_logs() as told:
        for _ in range(1000):
            complaints.take(KafkaError(RESOLVE, "no such name"))
        complaints.take(KafkaError(DOWN, "1/1 brokers are down"))
        clock.now += 5.0
        complaints.take(KafkaError(RESOLVE, "no such name"))
    assert [(each["error"], each["held_back"]) for each in told] == [
        ("no such name", 0),
        ("1/1 brokers are down", 0),
        ("no such name", 999),
    ]
    assert {(each["event"], each["topic"]) for each in told} == {("broker_error", "t.dead")}


def test_what_was_said_last_and_who_was_refused_is_kept():
    complaints = ClientErrorLog("broker_error", "t.dead", Clock())
    assert (complaints.refused, complaints.last) == (None, "")
    complaints.take(KafkaError(REFUSED, "bad password"))
    complaints.take(KafkaError(DOWN, "1/1 brokers are down"))
    assert complaints.refused is not None
    assert complaints.refused.code() == REFUSED
    assert complaints.last == "bad password", "that all are down says less"
