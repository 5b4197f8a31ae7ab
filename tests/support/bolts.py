from headrace import AdvancedBolt, Bolt, Topology, bolt
from headrace.sinks import MemoryDeadLetters


@bolt
def same(value):
    return value


@bolt
async def wait(value):
    return value


@bolt(vectorised=True)
def columns(batch):
    return batch


class Own(Bolt):
    def process(self, value, /):
        return value


class Keeps(AdvancedBolt):
    def process(self, tuple_, collector, /):
        collector.ack(tuple_)


class Untold(Exception):
    """Its text cannot be had."""

    def __str__(self):
        raise RuntimeError


def made(base, **attributes):
    return type("Made", (base,), attributes)


def new_topology(**options):
    """A topology that lacks only its steps, and the stream of its source."""
    topology = Topology("t", **options)
    topology.dead_letters.into(MemoryDeadLetters())
    return topology, topology.source("in")
