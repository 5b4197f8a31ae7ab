import threading

import pytest
from confluent_kafka import Producer

from service.devservers.process import connects
from service.devservers.servers import EmbeddedKafka
from tests.acceptance import processes
from tests.support.committed_messages import committed_values
from tests.support.patience import seconds

pytestmark = pytest.mark.integration


def send(server, topic, values, **more):
    producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
    failed = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error), **more)
    assert producer.flush(seconds(30)) == 0
    assert failed == [None] * len(values)


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
        assert committed_values(server.address, "kept") == [b"1", b"2", b"3"]
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
