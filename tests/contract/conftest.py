from typing import Any

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.kafka import KafkaWorld, MemoryLogWorld

BOTH = ["memory", pytest.param("kafka", marks=pytest.mark.integration)]


@pytest.fixture(params=BOTH)
def world(request):
    if request.param == "memory":
        made: Any = MemoryLogWorld()
    else:
        made = KafkaWorld(request.getfixturevalue("kafka"))
    yield made
    made.close()


@pytest.fixture
def real(kafka):
    made = KafkaWorld(kafka)
    yield made
    made.close()


@pytest.fixture(scope="session")
def quiet_zookeeper(tmp_path_factory):
    """A server of the worker's own, for tests that count what is written."""
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("quiet-zookeeper"))
    server.open()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory):
    server = EmbeddedKafka(tmp_path_factory.mktemp("kafka"))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def own(own_broker):
    own_broker.open()
    made = KafkaWorld(own_broker)
    made.properties["reconnect.backoff.max.ms"] = 500
    yield made
    made.close()


@pytest.fixture(params=BOTH)
def fragile(request):
    if request.param == "memory":
        yield MemoryLogWorld()
    else:
        yield request.getfixturevalue("own")
