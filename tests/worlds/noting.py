"""A topology behind one parsed stream, and bolts of every kind that note their calls."""

import asyncio
import json
from collections import defaultdict

from headrace import AdvancedBolt, Bolt, Topology, bolt
from headrace.sinks import MemoryDeadLetters


@bolt
def parse(record):
    return json.loads(record.value)


def payload(**fields_):
    return json.dumps(fields_).encode()


def drawn(draw, *, reliability="at-least-once"):
    """A topology of one source whose parsed stream `draw` goes on with."""
    topology = Topology("runtime", reliability=reliability)
    draw(topology.source("in").then(parse))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


class Seen:
    """Notes what each instance of a bolt was called with, and fails where it is told to."""

    def __init__(self, failing=()):
        self.calls = defaultdict(list)
        self.failing = list(failing)  # (task, value), once each
        self.made = 0

    def check(self, task, value):
        self.calls[task].append(value["n"])
        if (task, value["n"]) in self.failing:
            self.failing.remove((task, value["n"]))
            raise ValueError("once")
        return {"task": task, "n": value["n"]}

    def make(self, kind="function"):
        task, check = self.made, self.check
        self.made += 1

        class Function(Bolt):
            def process(self, value, /):
                return check(task, value)

        class Generator(Bolt):
            def process(self, value, /):
                yield check(task, value)

        class Async(Bolt):
            async def process(self, value, /):
                await asyncio.sleep(0)
                return check(task, value)

        class Blocking(Function):
            blocking = True

        class Advanced(AdvancedBolt):
            def process(self, tuple_, collector, /):
                collector.emit(check(task, tuple_.value), anchors=tuple_)
                collector.ack(tuple_)

        kinds = {
            "function": Function, "generator": Generator, "async": Async,
            "blocking": Blocking, "advanced": Advanced,
        }  # fmt: skip
        return kinds[kind]()


KINDS = ["function", "generator", "async", "blocking", "advanced"]
ORDERED_KINDS = KINDS[:-1]
