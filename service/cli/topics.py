"""Which topics and partitions a topology reads, for commands that look from outside."""

from concurrent.futures import Future
from typing import TypeVar

from partition.errors import KafkaUnavailable
from partition.interfaces import Catalogue, Topic
from partition.records import Partition
from topology.steps import Source
from topology.topology import Topology

T = TypeVar("T")

ASK_SECONDS = 20.0  # above what Kafka's and ZooKeeper's clients take themselves


def answer(asked: Future[T]) -> T:
    """Wait for Kafka's answer. Raises as the catalogue does; KafkaUnavailable if none comes."""
    try:
        return asked.result(ASK_SECONDS)
    except TimeoutError:
        reason = f"no answer in {ASK_SECONDS:g} seconds"
        raise KafkaUnavailable("about topics and offsets", reason) from None


def topics_of(source: Source, catalogue: Catalogue) -> list[Topic]:
    """The topics of one source. Raises as the catalogue does; a pattern may match none."""
    if isinstance(source.topic, str):
        return [answer(catalogue.topic(source.topic))]
    pattern = source.topic
    every = answer(catalogue.topics())
    return [topic for name, topic in sorted(every.items()) if pattern.fullmatch(name)]


def partitions_of(topology: Topology, catalogue: Catalogue) -> list[Partition]:
    """Every partition that the topology reads, in order, each once."""
    found: dict[Partition, None] = {}
    for source in topology.sources:
        for topic in topics_of(source, catalogue):
            found |= {Partition(topic.name, number): None for number in topic.partitions}
    return list(found)
