"""The surroundings of the Kafka rows of the fault matrix."""

import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.kafka import KafkaWorld
from tests.support.service import Serving

MakeServing = Callable[..., Serving]


@pytest.fixture
def world(kafka: EmbeddedKafka, topic: Callable[..., str]) -> Iterator[KafkaWorld]:
    made = KafkaWorld(kafka, topic)
    yield made
    made.close()


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of the module's own, which its tests may stop; its log cleaner never rests."""
    restless = {"log.cleaner.backoff.ms": "200"}
    server = EmbeddedKafka(tmp_path_factory.mktemp("kafka"), properties=restless)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def own(own_broker: EmbeddedKafka) -> Iterator[KafkaWorld]:
    own_broker.open()

    def topic(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        own_broker.create_topic(name, partitions, config=config or {})
        return name

    made = KafkaWorld(own_broker, topic)
    yield made
    made.close()


@pytest.fixture
def serve(zookeeper: EmbeddedZooKeeper) -> MakeServing:
    """`serve(topic, world, **options)`: a pipeline over a topic of a world."""

    def make(topic: str | list[str], world: KafkaWorld, **options: object) -> Serving:
        return Serving(topic, world.properties, zookeeper.address, **options)  # type: ignore[arg-type]

    return make
