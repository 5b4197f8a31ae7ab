import logging

import structlog
from confluent_kafka import KafkaError

from sinks.kafka.client import ClientErrorLog, is_news

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


def test_lines_of_errors_that_the_callback_hears_stay_out_of_the_log():
    texts = [f"{each} [rdkafka#producer-1] x" for each in ("FAIL", "ERROR", "GETPID", "CONFWARN")]
    passed = [text for text in texts if is_news(logging.makeLogRecord({"msg": text}))]
    assert passed == ["CONFWARN [rdkafka#producer-1] x"]
