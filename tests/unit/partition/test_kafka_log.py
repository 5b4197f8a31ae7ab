"""Lines of the log about Kafka's clients."""

import structlog
from confluent_kafka import KafkaError

from partition.kafka import librdkafka
from partition.kafka.librdkafka import KafkaLog


def test_clients_that_lost_the_same_broker_log_it_once(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(librdkafka.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(KafkaLog, "_next", {})
    monkeypatch.setattr(KafkaLog, "_held", {})
    lost = KafkaError(KafkaError._TRANSPORT, "a:1: Connection refused")
    with structlog.testing.capture_logs() as logged:
        for client in (KafkaLog(), KafkaLog()):
            client.log(3, "%s", "FAIL", "c", "[thrd:a:1]: a:1: Disconnected")
            assert client.last == "a:1: Disconnected", "for whoever gives up before an event comes"
            client.error(lost)
            client.error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
            assert client.last == "a:1: Connection refused"
        now[0] += 30.0
        client.error(lost)
    assert [(each["event"], each["held_back"]) for each in logged] == [
        ("kafka_trouble", n) for n in (0, 1)
    ]
