import threading

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from service.devservers.process import ServerFailed, connects
from service.devservers.servers import EmbeddedKafka
from tests.acceptance import processes
from tests.support.patience import Limit, seconds

pytestmark = pytest.mark.integration


def send(server, topic, values, **more):
    producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
    failed = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error), **more)
    assert producer.flush(seconds(30)) == 0
    assert failed == [None] * len(values)


def read(server, topic, count):
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "test",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = []
        deadline = Limit(30)
        while len(values) < count and not deadline.passed:
            values += [each.value() for each in consumer.consume(count, 1.0) if not each.error()]
        return values
    finally:
        consumer.close()


def test_broker_keeps_data_and_ports_over_close_and_kill(kafka, tmp_path):
    server = EmbeddedKafka(tmp_path)
    server.open()
    try:
        address = server.address
        assert address != kafka.address
        server.create_topic("kept")
        send(server, "kept", [b"1"])
        server.close()
        assert not connects(server.port)
        server.open()
        assert server.address == address
        send(server, "kept", [b"2"])
        server.kill()
        server.open()
        assert server.address == address
        send(server, "kept", [b"3"], timestamp=1_357_000_000_000)  # which does not expire
        assert read(server, "kept", 3) == [b"1", b"2", b"3"]
    finally:
        server.close()
    assert not (tmp_path / "kafka.pid").exists()


def test_topic_creation_is_retried_after_a_lost_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("service.devservers.servers._ATTEMPT_SECONDS", 1.0)
    server = EmbeddedKafka(tmp_path)
    server.open()
    try:
        processes.freeze(server.pid)
        thawing = threading.Timer(2.5, processes.thaw, [server.pid])
        thawing.start()
        server.create_topic("late")
        thawing.join()
        assert "late" in server.topics()
    finally:
        server.close()


def test_broker_that_cannot_start_shows_the_end_of_its_log(tmp_path):
    server = EmbeddedKafka(tmp_path, properties={"log.cleaner.dedupe.buffer.size": "1"})
    with pytest.raises(ServerFailed, match="kafka could not format its storage") as caught:
        server.open()
    assert "log.cleaner.dedupe.buffer.size must be" in caught.value.tail
    assert not server.running
