"""The surroundings of the Kafka rows of the fault matrix."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.kafka import KafkaWorld
from tests.support.service import Serving

MakeServing = Callable[..., Serving]


@pytest.fixture
def world(kafka: EmbeddedKafka, topic: Callable[..., str]) -> Iterator[KafkaWorld]:
    with closing(KafkaWorld(kafka, topic)) as made:
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

    def topic(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        own_broker.create_topic(name, partitions, config=config or {})
        return name

    with closing(KafkaWorld(own_broker, topic)) as made:
        yield made


@pytest.fixture
def serve(zookeeper: EmbeddedZooKeeper) -> MakeServing:
    """`serve(topic, world, **options)`: a pipeline over a topic of a world."""

    def make(topic: str | list[str], world: KafkaWorld, **options: object) -> Serving:
        return Serving(topic, world.properties, zookeeper.address, **options)  # type: ignore[arg-type]

    return make
