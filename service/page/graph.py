"""Where the steps of a topology are drawn: in layers, from the sources on. Pure."""

from dataclasses import dataclass

from topology.record import DEFAULT_STREAM
from topology.steps import BoltStep, Source, Step
from topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Node:
    """A source, a bolt or a sink, and its place: its layer from the left, its row in it."""

    id: str
    name: str
    kind: str  # source, sink, or the bolt's kind
    layer: int
    row: int


@dataclass(frozen=True, slots=True)
class Edge:
    """What flows from one node to another. `stream` is empty for the default one."""

    source: str
    target: str
    stream: str


@dataclass(frozen=True, slots=True)
class Graph:
    """A topology as it is drawn."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def graph_of(topology: Topology) -> Graph:
    """Lay a topology out: every step one layer behind the last of those that lead to it."""
    steps = list(topology.steps())
    ids = {id(step): f"step-{number}" for number, step in enumerate(steps)}
    sources = {f"source-{number}": each for number, each in enumerate(topology.sources)}
    edges = [
        Edge(name, ids[id(child)], "")
        for name, source in sources.items()
        for child in source.children
    ]
    edges += [
        Edge(ids[id(step)], ids[id(child)], "" if stream == DEFAULT_STREAM else stream)
        for step in steps
        if isinstance(step, BoltStep)
        for stream, children in step.streams.items()
        for child in children
    ]
    layers = _layers([*sources, *ids.values()], edges)
    rows = dict.fromkeys(range(max(layers.values(), default=0) + 1), 0)
    nodes = []
    every: list[tuple[str, Source | Step]] = [*sources.items(), *((ids[id(s)], s) for s in steps)]
    for name, each in every:
        layer = layers[name]
        label = each.label if isinstance(each, Source) else each.name
        nodes.append(Node(name, label, _kind(each), layer, rows[layer]))
        rows[layer] += 1
    return Graph(tuple(nodes), tuple(edges))


def _layers(names: list[str], edges: list[Edge]) -> dict[str, int]:
    """The length of the longest way to each; a topology has no circles."""
    layers = dict.fromkeys(names, 0)
    for _ in names:
        moved = False
        for edge in edges:
            least = layers[edge.source] + 1
            if layers[edge.target] < least:
                layers[edge.target] = least
                moved = True
        if not moved:
            break
    return layers


def _kind(each: Source | Step) -> str:
    if isinstance(each, Source):
        return "source"
    return each.kind.value if isinstance(each, BoltStep) else "sink"
