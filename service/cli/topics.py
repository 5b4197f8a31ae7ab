"""Which topics and partitions a topology reads, for commands that look from outside."""

from partition.catalogue import Catalogue, Topic
from partition.chunk import Partition
from topology.topology import Source, Topology

ASK_SECONDS = 20.0  # above what the catalogue takes itself


def topics_of(source: Source, catalogue: Catalogue) -> list[Topic]:
    """The topics of one source. Raises as the catalogue does; a pattern may match none."""
    if isinstance(source.topic, str):
        return [catalogue.topic(source.topic).result(ASK_SECONDS)]
    pattern = source.topic
    every = catalogue.topics().result(ASK_SECONDS)
    return [topic for name, topic in sorted(every.items()) if pattern.fullmatch(name)]


def partitions_of(topology: Topology, catalogue: Catalogue) -> list[Partition]:
    """Every partition that the topology reads, in order, each once."""
    found: dict[Partition, None] = {}
    for source in topology.sources:
        for topic in topics_of(source, catalogue):
            found |= {Partition(topic.name, number): None for number in topic.partitions}
    return list(found)
