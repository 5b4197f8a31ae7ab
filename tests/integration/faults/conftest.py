"""The surroundings of the Kafka rows of the fault matrix."""

from contextlib import closing

import pytest

from service.devservers.servers import EmbeddedKafka
from tests.support.kafka import KafkaWorld
from tests.support.service import Serving


@pytest.fixture
def world(kafka):
    with closing(KafkaWorld(kafka)) as made:
        yield made


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory):
    """A broker of the module's own, which its tests may stop; its log cleaner never rests."""
    restless = {"log.cleaner.backoff.ms": "200"}
    with closing(EmbeddedKafka(tmp_path_factory.mktemp("kafka"), properties=restless)) as server:
        yield server


@pytest.fixture
def own(own_broker):
    own_broker.open()
    with closing(KafkaWorld(own_broker)) as made:
        yield made


@pytest.fixture
def serve(zookeeper):
    def make(topic: str | list[str], world: KafkaWorld, **options: object) -> Serving:
        return Serving(topic, world.properties, zookeeper.address, **options)  # type: ignore[arg-type]

    return make
