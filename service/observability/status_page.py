"""The status page: its files, topology and charts, and the facts as JSON, from snapshots."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from partition.manager import PartitionStatistics
from service.observability.charts import EVERY_SECONDS, History, charts_html
from service.observability.health import HealthCheck
from service.observability.snapshot import TOTALS, Snapshot
from topology.masking import mask
from topology.record import DEFAULT_STREAM
from topology.steps import BoltStep, Source, Step
from topology.topology import Topology

MOST_PARTITIONS = 200  # that are shown: those that are worst off
_OF_A_PARTITION = (
    "committed", "log_start", "log_end", "lag", "oldest_pending_seconds", "commit_age_seconds",
    "transaction_wait_seconds", "epoch", "committed_txid", "open_transactions",
)  # fmt: skip
_OF_ITS_LEDGER = (
    "last_completed_offset", "emitted_to", "fetched_to", "pending", "waiting", "failed",
)  # fmt: skip
_OF_A_FAILURE = ("event", "step", "error_class", "error", "count")
_FRESH_SECONDS = 0.25  # snapshots are no younger; who asks more often is told the same again


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
    """Tuples from one node to another. `stream` is empty for the default stream."""

    source: str
    target: str
    stream: str


@dataclass(frozen=True, slots=True)
class Graph:
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


class StatusPage:
    """Answers what the page asks for. Any thread.

    However many ask, the answer is made four times a second at most. Of partitions beyond
    `MOST_PARTITIONS` it has the last completed offsets only.
    """

    def __init__(
        self,
        pipeline: str,
        topology: Topology,
        snapshot: Callable[[], Snapshot | None],
        health: HealthCheck,
        history: History,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = {
            "pipeline": pipeline,
            "topology": topology.name,
            "reliability": topology.reliability,
        }
        self._graph = graph_of(topology)
        self._topology = topology
        self._snapshot = snapshot
        self._health = health
        self._history = history
        self._template = (_FOLDER / "status.html").read_text(encoding="utf-8")
        self._clock = clock
        self._lock = threading.Lock()
        self._made: dict[str, tuple[float, bytes]] = {}  # by answer: when, and what

    def json(self) -> bytes:
        return self._fresh("status", lambda now: mask(json.dumps(self._status(now))))

    def html(self) -> bytes:
        drawn = partial(charts_html, self._history.samples)
        return self._fresh("page", lambda now: self._template.replace(_CHARTS, drawn(now)))

    def history_json(self) -> bytes:
        facts = {"every_seconds": EVERY_SECONDS, "samples": self._history.samples}
        return self._fresh("history", lambda now: json.dumps({"now": now, **facts}))

    def _fresh(self, name: str, make: Callable[[float], str]) -> bytes:
        with self._lock:
            now = self._clock()
            made_at, made = self._made.get(name, (float("-inf"), b""))
            if now - made_at >= _FRESH_SECONDS:
                made = make(now).encode()
                self._made[name] = now, made
            return made

    def _status(self, now: float) -> dict[str, Any]:
        verdicts = {"live": asdict(self._health.live()), "ready": asdict(self._health.ready())}
        snapshot = self._snapshot()
        status = {**self._facts, "health": verdicts, "graph": asdict(self._graph)}
        if snapshot is None:
            return {**status, "taken_at": None}
        shown = sorted(snapshot.partitions, key=lambda each: _need(each, snapshot))
        return {
            **status,
            "taken_at": snapshot.taken_at,
            "age_seconds": max(0.0, now - snapshot.taken_at),
            "latency": self._history.latency,
            "totals": {name: getattr(snapshot, name) for name in TOTALS},
            "nodes": {each.id: self._node_values(each, snapshot) for each in self._graph.nodes},
            "partitions": [
                _partition(each, snapshot)
                for each in sorted(shown[:MOST_PARTITIONS], key=lambda each: each.partition)
            ],
            "partitions_total": len(snapshot.partitions),
            "last_completed": {
                str(each.partition): each.ledger.last_completed_offset
                for each in snapshot.partitions
            },
            "halted": {str(each): why for each, why in snapshot.halted.items()},
            "failures": [
                {
                    "seconds_ago": max(0.0, now - each.at),
                    **{name: getattr(each, name) for name in _OF_A_FAILURE},
                }
                for each in reversed(snapshot.recent_failures)
            ],
            "sinks": [
                {
                    "sink": each.sink,
                    "failing_seconds": None
                    if each.failing_since is None
                    else max(0.0, snapshot.taken_at - each.failing_since),
                    "last_error": each.last_error,
                }
                for each in snapshot.sinks
            ],
            "held_back": snapshot.held_back,
        }

    def _node_values(self, node: Node, snapshot: Snapshot) -> dict[str, float]:
        """The counts of a node; what is `done` only grows, so a rate can be read off two looks."""
        if node.kind == "source":
            return {"done": self._read(node, snapshot)}
        if node.kind == "sink":
            for sink in snapshot.sinks:
                if sink.sink == node.name:
                    return {"done": sink.rows_written, "waiting": sink.rows_pending}
            return {"done": 0}
        times, runner = snapshot.call_times.get(node.name), snapshot.runners.get(node.name)
        figures: dict[str, float] = {
            "done": 0 if times is None else times.count,
            "failed": snapshot.failures.get(node.name, 0),
        }
        if runner is not None:
            figures |= {"in_flight": runner.in_flight, "waiting": runner.waiting}
        return figures

    def _read(self, node: Node, snapshot: Snapshot) -> int:
        source_of = self._topology.source_of
        parts = snapshot.partitions
        return sum(p.read for p in parts if source_of(p.partition.topic).label == node.name)


def _need(part: PartitionStatistics, snapshot: Snapshot) -> tuple[object, ...]:
    """Sort what needs attention most to the front."""
    return (
        part.partition not in snapshot.halted,
        -part.commit_age_seconds,
        -part.lag,
        part.partition,
    )


def _partition(part: PartitionStatistics, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "partition": str(part.partition),
        **{name: getattr(part, name) for name in _OF_A_PARTITION},
        **{name: getattr(part.ledger, name) for name in _OF_ITS_LEDGER},
        "lost": sum(part.lost.values()),
        "halted": snapshot.halted.get(part.partition),
    }


def graph_of(topology: Topology) -> Graph:
    """Lay a topology out: every step one layer behind the last of those that lead to it."""
    sources = {f"source-{number}": each for number, each in enumerate(topology.sources)}
    steps = {f"step-{number}": each for number, each in enumerate(topology.steps())}
    ids = {id(step): name for name, step in steps.items()}
    edges = [
        Edge(name, ids[id(child)], "")
        for name, source in sources.items()
        for child in source.children
    ]
    edges += [
        Edge(name, ids[id(child)], "" if stream == DEFAULT_STREAM else stream)
        for name, step in steps.items()
        if isinstance(step, BoltStep)
        for stream, children in step.streams.items()
        for child in children
    ]
    layers = dict.fromkeys([*sources, *steps], 0)
    for edge in edges:  # parents before children, so that of a parent is known
        layers[edge.target] = max(layers[edge.target], layers[edge.source] + 1)
    rows: Counter[int] = Counter()
    nodes = []
    every: list[tuple[str, Source | Step]] = [*sources.items(), *steps.items()]
    for name, each in every:
        layer = layers[name]
        label = each.label if isinstance(each, Source) else each.name
        nodes.append(Node(name, label, _kind(each), layer, rows[layer]))
        rows[layer] += 1
    return Graph(tuple(nodes), tuple(edges))


def _kind(each: Source | Step) -> str:
    if isinstance(each, Source):
        return "source"
    return each.kind.value if isinstance(each, BoltStep) else "sink"


_CHARTS = '<section id="charts"></section>'
_FOLDER = Path(__file__).parent / "assets"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
# Nothing of the page comes from elsewhere, and nothing of a record becomes a part of it.
CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_files() -> dict[str, tuple[str, bytes]]:
    return {
        f"/{path.name}": (_KINDS[path.suffix], path.read_bytes())
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _KINDS
    }
