"""The surroundings of the Kafka rows of the fault matrix."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.kafka import KafkaWorld
from tests.support.service import Serving

MakeServing = Callable[..., Serving]


@pytest.fixture
def world(kafka: EmbeddedKafka) -> Iterator[KafkaWorld]:
    with closing(KafkaWorld(kafka)) as made:
        yield made


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of the module's own, which its tests may stop; its log cleaner never rests."""
    restless = {"log.cleaner.backoff.ms": "200"}
    with closing(EmbeddedKafka(tmp_path_factory.mktemp("kafka"), properties=restless)) as server:
        yield server


@pytest.fixture
def own(own_broker: EmbeddedKafka) -> Iterator[KafkaWorld]:
    own_broker.open()
    with closing(KafkaWorld(own_broker)) as made:
        yield made


@pytest.fixture
def serve(zookeeper: EmbeddedZooKeeper) -> MakeServing:
    """`serve(topic, world, **options)`: a pipeline over a topic of a world."""

    def make(topic: str | list[str], world: KafkaWorld, **options: object) -> Serving:
        return Serving(topic, world.properties, zookeeper.address, **options)  # type: ignore[arg-type]

    return make
