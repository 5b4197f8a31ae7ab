"""Errors of a Kafka client in the log."""

import logging

import structlog
from confluent_kafka import KafkaError

from sinks.kafka.client import ClientErrorLog

RESOLVE = KafkaError(KafkaError._RESOLVE, "no such name")
DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
REFUSED = KafkaError(KafkaError._AUTHENTICATION, "bad password")


def test_repeated_error_is_logged_every_half_minute():
    now = [100.0]
    errors = ClientErrorLog("broker_error", "t.dead", lambda: now[0])
    with structlog.testing.capture_logs() as logged:
        for _ in range(1000):
            errors.take(RESOLVE)
        errors.take(DOWN)
        now[0] += 30.0
        errors.take(RESOLVE)
    assert [(each["error"], each["held_back"]) for each in logged] == [
        ("no such name", 0),
        ("no such name", 999),
    ]
    assert {(each["event"], each["topic"]) for each in logged} == {("broker_error", "t.dead")}


def test_rejected_credentials_and_the_last_error_are_kept():
    errors = ClientErrorLog("broker_error", "t.dead")
    assert (errors.refused, errors.last) == (None, "")
    for each in (REFUSED, DOWN):
        errors.take(each)
    assert errors.refused is REFUSED
    assert errors.last == "bad password", "that all are down says less"


def test_what_an_error_tells_as_well_stays_out_of_the_log(caplog):
    for text in ("FAIL [p] refused", "ERROR [p] all down", "GETPID [p] loading", "CONFWARN [p] x"):
        logging.getLogger("headrace.sinks.kafka").warning(text)
    assert [each.getMessage() for each in caplog.records] == ["CONFWARN [p] x"]
