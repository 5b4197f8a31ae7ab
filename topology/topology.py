"""A topology: sources, bolts, sinks and dead letters; its validation and its drawings."""

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, get_args

from topology.bolt import (
    Bolt,
    Hooks,
    check_process,
    coroutines_of,
    mentions_to,
    streams_sent,
    tick_emits,
)
from topology.bolt import Kind as BoltKind
from topology.errors import InvalidTopology, expect
from topology.record import DEFAULT_STREAM, Record
from topology.reference import Reference
from topology.sink import DeadLetterSink, Kind, Sink, innermost
from topology.spark_step import ThroughSpark, check_place
from topology.steps import BoltStep, Order, SinkStep, Source, Step, is_direct
from topology.stream import Ends, Names, Stream, check_topic, is_positive

Reliability: TypeAlias = Literal["at-least-once", "at-most-once", "exactly-once"]

_KEEPING = (  # of those that users have from headrace.sinks
    "DeltaSink, IcebergSink, KafkaTopicSink, MemorySink, PostgresSink, SparkSink"
)
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")  # no node may have them in its path


_IN_A_NOTEBOOK = "In a notebook, make the Topology in the cell that adds its steps"


def can_name_offsets(name: str) -> bool:
    """Whether offsets, and folders of a warehouse, can lie under a name without leaving theirs."""
    return name not in ("", ".", "..") and "/" not in name and not _CONTROL.search(name)


class DeadLetters:
    """The destination of records that cannot be processed."""

    def __init__(self) -> None:
        self.sink: DeadLetterSink | None = None

    def into(self, sink: DeadLetterSink) -> None:
        """Set the destination. Raises InvalidTopology."""
        if self.sink is not None:
            message = f"dead_letters.into() was called twice, expected once. {_IN_A_NOTEBOOK}"
            raise InvalidTopology(message)
        is_sink = isinstance(sink, DeadLetterSink)
        expect(is_sink, "dead_letters.into()", sink, "a KafkaDeadLetters or another DeadLetterSink")
        self.sink = sink


class Topology:
    """Sources, bolts and sinks, and the destination of dead letters.

    `reliability` is `at-least-once`: an offset is stored when its record is complete;
    `at-most-once`: an offset is stored before its record reaches a bolt, and nothing is retried;
    or `exactly-once`: records are grouped into transactions, each of which every sink makes
    durable once. `transactions` says which records a transaction has that is retried after a
    crash: `transactional`, the same, or the partition halts; `opaque`, perhaps others if no sink
    has committed it.
    """

    def __init__(
        self,
        name: str,
        *,
        reliability: Reliability = "at-least-once",
        transactions: Kind = "transactional",
    ) -> None:
        expected = "a name that is not empty, '.' or '..', without '/' and control characters"
        expect(can_name_offsets(name), "topology name", name, expected)
        place = f"topology '{name}'"
        known = get_args(Reliability)
        expect(reliability in known, f"{place}, reliability", reliability, ", ".join(known))
        kinds = get_args(Kind)
        expect(transactions in kinds, f"{place}, transactions", transactions, ", ".join(kinds))
        if transactions != "transactional" and reliability != "exactly-once":
            raise InvalidTopology(
                f"{place}: found transactions {transactions!r} with reliability "
                f"{reliability!r}, expected 'exactly-once'"
            )
        self.name = name
        self.reliability = reliability
        self.transactions = transactions
        self.sources: list[Source] = []
        self.references: list[Reference] = []
        self.listeners: list[Hooks] = []
        self.dead_letters = DeadLetters()
        self._names = Names(self._repr_html_)

    def source(
        self, topic: str | re.Pattern[str], *, records_per_second: float | None = None
    ) -> Stream[Record]:
        """Read a topic, or every topic whose whole name matches a compiled pattern.

        Matching topics that are created later are read from their beginning. A topic that has a
        source by its name is no part of a pattern. `records_per_second` limits all partitions
        together, retries aside. Raises InvalidTopology.
        """
        check_topic(topic)
        source = Source(topic, records_per_second)
        if any(other.label == source.label for other in self.sources):
            raise InvalidTopology(
                f"topic '{source.label}': found two sources. Use the stream of the first one "
                f"twice. {_IN_A_NOTEBOOK}"
            )
        is_rate = records_per_second is None or is_positive(records_per_second)
        place = f"topic '{source.label}', records_per_second"
        expect(is_rate, place, records_per_second, "a finite number > 0")
        self.sources.append(source)
        return Stream(self._names, Ends((source.children,), f"topic '{source.label}'"))

    def uses(self, *references: Reference) -> None:
        """Load these tables before the first record, and refresh them. Raises InvalidTopology."""
        for each in references:
            expect(isinstance(each, Reference), "uses()", each, "a reference()")
        self.references += [each for each in references if each not in self.references]

    def hooks(self, *hooks: Hooks) -> None:
        """Call these when the service starts and stops, and partitions are assigned and revoked.

        Raises InvalidTopology.
        """
        methods = [name for name in vars(Hooks) if not name.startswith("_")]
        for each in hooks:
            expect(isinstance(each, Hooks), "hooks()", each, "an instance of Hooks")
            if names := coroutines_of(each, methods):
                raise InvalidTopology(
                    f"hooks(): found async def {', '.join(names)} in {type(each).__name__}, "
                    "expected plain functions: nothing awaits hooks"
                )
        self.listeners += hooks

    def source_of(self, topic: str) -> Source:
        """Return the source of a topic. Raises KeyError."""
        for source in self.sources:
            if source.topic == topic:
                return source
        for source in self.sources:
            if isinstance(source.topic, re.Pattern) and source.topic.fullmatch(topic):
                return source
        raise KeyError(topic)

    def meetings(self) -> list[list[Source]]:
        """Return groups of sources: one process must read their partitions of the same number.

        They meet in a step that needs all records of a key: an advanced bolt, one after
        `keyed_by`, or one grouped by `fields`. A pattern is one source.
        """
        at: dict[Step, set[Source]] = {}
        for source in self.sources:
            below = list(source.children)
            while below:
                step = below.pop()
                if source not in (reached := at.setdefault(step, set())):
                    reached.add(source)
                    below += _children(step)
        groups: list[set[Source]] = []
        for step, sources in at.items():
            if len(sources) > 1 and isinstance(step, BoltStep) and step.needs_whole_keys:
                apart = [group for group in groups if not group & sources]
                joined = [group for group in groups if group & sources]
                groups = [*apart, sources.union(*joined)]
        return [[each for each in self.sources if each in group] for group in groups]

    def steps(self) -> Iterator[Step]:
        """Iterate over the steps, parents before children."""
        seen: dict[Step, None] = {}

        def visit(step: Step) -> None:
            if step in seen:
                return
            for child in reversed(_children(step)):
                visit(child)
            seen[step] = None

        for source in reversed(self.sources):
            for child in reversed(source.children):
                visit(child)
        return reversed(seen)

    def bolts(self) -> Iterator[BoltStep]:
        return (step for step in self.steps() if isinstance(step, BoltStep))

    def sink_steps(self) -> list[SinkStep]:
        return [step for step in self.steps() if isinstance(step, SinkStep)]

    def __repr__(self) -> str:
        sources = ", ".join(source.label for source in self.sources) or "no source"
        steps = ", ".join(step.name for step in self.steps()) or "no step"
        return f"Topology({self.name!r}, {self.reliability}: {sources} -> {steps})"

    def _repr_html_(self) -> str:
        return as_svg(self)

    def run(self) -> NoReturn:
        """Run as `headrace run` does, with its options from `sys.argv`, and end the process.

        For `if __name__ == "__main__":` at the end of a module, which is then imported once more,
        by its name. Raises InvalidTopology.
        """
        from service.cli.main import main  # noqa: PLC0415 - only a run needs it

        script = sys.modules["__main__"]
        names = [name for name, value in vars(script).items() if value is self]
        file = getattr(script, "__file__", None)
        expected = "a variable of the file that Python runs, and run() below `if __name__ == …`"
        expect(names and file, f"topology '{self.name}', run()", names or "no name", expected)
        module = script.__spec__.name if script.__spec__ else Path(str(file)).stem
        sys.exit(main(["run", f"{module}:{names[0]}", *sys.argv[1:]]))

    def validate(self) -> None:
        """Raise InvalidTopology, naming the step, unless the topology can run."""
        if not self.sources:
            raise InvalidTopology(f"topology '{self.name}' has no source. Call source(topic)")
        for source in self.sources:
            if not source.children:
                raise InvalidTopology(f"topic '{source.label}' {_LEADS_NOWHERE}")
            for child in source.children:
                _validate_input(f"topic '{source.label}'", child, direct=False)
                check_place(f"topic '{source.label}'", child, is_source=True)
        if self.dead_letters.sink is None:
            raise InvalidTopology(
                f"topology '{self.name}' has no destination of dead letters. "
                "Call dead_letters.into(sink)"
            )
        for step in self.bolts():
            _validate_bolt(step)
        if self.reliability == "exactly-once":
            check_exactly_once(self.steps(), self.transactions)


NO_TRANSACTION = "what belongs to no record belongs to no transaction. Use at-least-once"
_LEADS_NOWHERE = "leads nowhere. Add a bolt or a sink"


def _children(step: Step) -> list[Step]:
    return step.children if isinstance(step, BoltStep) else []


def _validate_code(step: BoltStep) -> None:
    """Refuse a bolt whose code shows that its calls fail, or that nobody gets its values."""
    if isinstance(step.bolt, Bolt):
        check_process(step.bolt)
    named = streams_sent(step.bolt)
    for stream in sorted(named - step.streams.keys()):
        raise InvalidTopology(
            f"bolt '{step.name}' sends To('{stream}', …), which it does not declare. "
            f"Call then(…, streams=['{stream}'])"
        )
    tick = getattr(step.bolt, "tick", None)
    yields = inspect.isgeneratorfunction(tick) or inspect.isasyncgenfunction(tick)
    if yields and not mentions_to(step.bolt) and not step.streams[DEFAULT_STREAM]:
        raise InvalidTopology(
            f"bolt '{step.name}' yields in tick(), but its default stream {_LEADS_NOWHERE}, or "
            "yield To(stream, value)"
        )


def _validate_bolt(step: BoltStep) -> None:
    _validate_code(step)
    for stream, children in step.streams.items():
        has_names = len(step.streams) > 1
        if not children and not (has_names and stream == DEFAULT_STREAM):
            place = f"stream '{stream}' of " if has_names else ""
            raise InvalidTopology(f"{place}bolt '{step.name}' {_LEADS_NOWHERE}")
        for child in children:
            _validate_input(f"bolt '{step.name}'", child, direct=any(map(is_direct, children)))
            check_place(f"bolt '{step.name}'", child, is_source=False)
            if step.kind is not BoltKind.VECTORISED or not isinstance(child, BoltStep):
                continue
            if child.kind is not BoltKind.VECTORISED:
                raise InvalidTopology(
                    f"bolt '{child.name}' takes single values, but '{step.name}' gives columns. "
                    "Expected a vectorised bolt or a sink after it"
                )


def _validate_input(place: str, child: Step, *, direct: bool) -> None:
    if is_direct(child) and not direct:
        message = f"'{child.name}' is grouped direct(), but {place} cannot name a task"
        raise InvalidTopology(message)
    if direct and not is_direct(child):
        raise InvalidTopology(
            f"'{child.name}' after {place} is not grouped direct(), but another step of the same "
            "stream is. Expected all of them to be"
        )


def guarantee_of(sink: Sink[Any]) -> str:
    """Return the strongest guarantee of a sink, in words."""
    kinds = [kind for kind in get_args(Kind) if kind in sink.kinds]
    return f"exactly-once ({' and '.join(kinds)})" if kinds else "at-least-once"


def check_exactly_once(steps: Iterable[Step], kind: Kind) -> None:
    """Raise InvalidTopology, naming the step, unless all keep transactions of this kind."""
    for step in steps:
        if isinstance(step, BoltStep):
            if step.kind is BoltKind.ADVANCED:
                raise InvalidTopology(
                    f"bolt '{step.name}' is an AdvancedBolt, which cannot be exactly-once: a row "
                    "of several records belongs to no one transaction. Use another bolt, or "
                    "reliability='at-least-once'"
                )
            if tick_emits(step.bolt):
                message = f"bolt '{step.name}' emits in tick(): {NO_TRANSACTION}"
                raise InvalidTopology(message)
        elif kind not in step.sink.kinds:
            # Only a sink that keeps one kind can be configured to keep the other.
            advice = getattr(innermost(step.sink), "advice", "") if step.sink.kinds else ""
            obstacle = getattr(innermost(step.sink), "obstacle", "")
            raise InvalidTopology(
                f"sink '{step.name}' ({_called(step.sink)}) gives {guarantee_of(step.sink)}"
                f"{f' ({obstacle})' if obstacle else ''}, expected exactly-once ({kind}). "
                f"Use {f'it with {advice}' if advice else _KEEPING}"
            )


def _called(sink: Sink[Any]) -> str:
    """Return a sink's class and `given`, and those of the sinks behind it."""
    inner = getattr(sink, "sink", None)
    behind = f" before {_called(inner)}" if isinstance(inner, Sink) else ""
    given = getattr(sink, "given", "")
    return f"{type(sink).__name__}{given}{behind}"


def as_text(topology: Topology) -> str:
    """Draw the topology as an indented tree; a step that several streams reach is drawn once."""
    kind = _kind(topology)
    lines = [f"topology {topology.name}  ({topology.reliability}{f', {kind}' if kind else ''})"]
    drawn: set[Step] = set()
    for source in topology.sources:
        limit = source.records_per_second
        rate = f"  (at most {limit:g} records/s)" if limit is not None else ""
        lines.append(f"  source {source.label}{rate}")
        for child in source.children:
            _indent(child, "", 2, lines, drawn)
    letters = topology.dead_letters.sink
    lines.append(f"  dead letters -> {letters.name if letters is not None else '(none)'}")
    lines += [f"  uses {reference.name}" for reference in topology.references]
    return "\n".join(lines)


def _edges(topology: Topology) -> Iterator[tuple[Source | BoltStep, str, Step]]:
    """Yield each arrow's start, stream and end, parents before children; "" is the default."""
    for source in topology.sources:
        yield from ((source, "", child) for child in source.children)
    for step in topology.bolts():
        for stream, children in step.streams.items():
            name = "" if stream == DEFAULT_STREAM else stream
            yield from ((step, name, child) for child in children)


def as_mermaid(topology: Topology) -> str:
    """Draw the topology as a Mermaid flow chart."""
    ids: dict[int, str] = {}
    lines = ["flowchart LR"]
    for number, source in enumerate(topology.sources):
        node = f"s{number}"
        lines.append(f'  {node}[("{_quoted(source.label)}")]')
        ids[id(source)] = node
    for number, step in enumerate(topology.steps()):
        node = ids[id(step)] = f"n{number}"
        shape = '["{}"]' if isinstance(step, BoltStep) else '[("{}")]'
        lines.append(f"  {node}{shape.format(_quoted(step.name))}")
    for start, stream, end in _edges(topology):
        arrow = f'-- "{_quoted(stream)}" -->' if stream else "-->"
        lines.append(f"  {ids[id(start)]} {arrow} {ids[id(end)]}")
    letters = topology.dead_letters.sink
    if letters is not None:
        lines.append(f'  dead[("{_quoted(letters.name)}")]')
        lines += [f"  {ids[id(step)]} -. dead letters .-> dead" for step in topology.bolts()]
    return "\n".join(lines)


_FILLS = {Source: "#3b82f633", BoltStep: "none", SinkStep: "#22c55e33"}
_ROW, _BOX, _GAP, _LETTER = 44, 28, 70, 7.5  # pixels
_Way: TypeAlias = tuple[str, list[Any]]  # a stream, and the places that its arrow leads through
_Box: TypeAlias = tuple[float, float, float]  # left, right and middle


def as_svg(topology: Topology) -> str:
    """Draw the topology for a notebook: sources on the left, sinks on the right."""
    labels: dict[Any, str] = {source: source.label for source in topology.sources}
    labels |= {step: step.name for step in topology.steps()}
    ways, boxes = _layout(topology, labels)
    parts = []
    for stream, way in ways:
        _, x, y = boxes[way[0]]
        path = f"M{x:g},{y:g}"
        for at in way[1:]:
            begin, end, below = boxes[at]
            middle = begin - _GAP / 2
            path += f"C{middle:g},{y:g} {middle:g},{below:g} {begin:g},{below:g}"
            path += "m-6,-4l6,4l-6,4" if at in labels else f"H{end:g}"
            y = below
        begin, _, below = boxes[way[1]]
        parts.append(
            f'<path d="{path}" fill="none" stroke="currentColor"/><text x="{begin - 8:g}" '
            f'y="{below - 5:g}" font-size="10" text-anchor="end">{escape(stream)}</text>'
        )
    for each, label in labels.items():
        begin, end, y = boxes[each]
        parts.append(
            f'<rect x="{begin:g}" y="{y - _BOX / 2:g}" width="{end - begin:g}" height="{_BOX}" '
            f'rx="{4 if isinstance(each, BoltStep) else _BOX / 2:g}" stroke="currentColor" '
            f'fill="{_FILLS[type(each)]}"/><text x="{(begin + end) / 2:g}" y="{y + 4:g}" '
            f'text-anchor="middle">{escape(label)}</text>'
        )
    width = max((end for _, end, _ in boxes.values()), default=0) + 1
    height = max((y for *_, y in boxes.values()), default=0) + _ROW
    letters = topology.dead_letters.sink
    note = f"dead letters: {escape(letters.name)}" if letters is not None else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{"".join(parts)}'
        f'<text x="1" y="{height - 6:g}">{note}</text></svg>'
    )


def _layout(topology: Topology, labels: Mapping[Any, str]) -> tuple[list[_Way], dict[Any, _Box]]:
    """Return the arrows, and the box of each place, near the middle of those it comes from.

    In the columns that it crosses an arrow has a place of its own, so that it runs through no box.
    """
    edges, column = [*_edges(topology)], dict[Any, int].fromkeys(labels, 0)
    for start, _, end in edges:  # parents before children
        column[end] = max(column[end], column[start] + 1)
    column |= dict.fromkeys(topology.sink_steps(), max(column.values(), default=0))
    ways: list[_Way] = []
    before = defaultdict[Any, list[Any]](list)
    for start, stream, end in edges:
        between = [(len(ways), number) for number in range(column[start] + 1, column[end])]
        column |= {place: place[1] for place in between}
        ways.append((stream, [start, *between, end]))
        for first, second in pairwise(ways[-1][1]):
            before[second].append(first)
    columns = [[at for at in column if column[at] == number] for number in {*column.values()}]
    tallest, left = max(map(len, columns), default=0), 1.0
    boxes: dict[Any, _Box] = {}
    for places in columns:
        places.sort(
            key=lambda at: sum(boxes[each][2] for each in before[at]) / (len(before[at]) or 1)
        )
        right = left + 24 + _LETTER * max(len(labels.get(at, "")) for at in places)
        for row, at in enumerate(places):
            boxes[at] = left, right, (row + (tallest - len(places) + 1) / 2) * _ROW
        left = right + _GAP
    return ways, boxes


def as_facts(topology: Topology) -> dict[str, Any]:
    letters = topology.dead_letters.sink
    return {
        "name": topology.name,
        "reliability": topology.reliability,
        "transactions": _kind(topology),
        "sources": [
            {
                "topic": source.label,
                "records_per_second": source.records_per_second,
                "to": [child.name for child in source.children],
            }
            for source in topology.sources
        ],
        "references": [reference.name for reference in topology.references],
        "steps": [_facts(step) for step in topology.steps()],
        "dead_letters": letters.name if letters is not None else None,
    }


def _kind(topology: Topology) -> str | None:
    return topology.transactions if topology.reliability == "exactly-once" else None


def _facts(step: Step) -> dict[str, Any]:
    if isinstance(step, SinkStep):
        return {
            "name": step.name,
            "kind": "sink",
            "spark_step": step.sink.step.name if isinstance(step.sink, ThroughSpark) else None,
            "sink": _sink_class(step),
            "gives": guarantee_of(step.sink),
            **asdict(step.policy),
        }
    return {
        "name": step.name,
        "kind": step.kind.value,
        "workers": step.workers,
        "tasks": len(step.bolts),
        "grouping": step.grouping and step.grouping.name,
        "order": step.order.value,
        "timeout_seconds": step.timeout_seconds,
        "to": {
            stream: [child.name for child in children] for stream, children in step.streams.items()
        },
    }


def _sink_class(step: SinkStep) -> str:
    sink = step.sink
    return type(sink.sink if isinstance(sink, ThroughSpark) else sink).__name__


def _indent(step: Step, stream: str, depth: int, lines: list[str], drawn: set[Step]) -> None:
    pad = "  " * depth + (f"[{stream}] " if stream else "")
    if step in drawn:
        lines.append(f"{pad}-> {step.name}  (see above)")
        return
    drawn.add(step)
    if isinstance(step, SinkStep):
        policy, sink = step.policy, step.sink
        spark = f"Spark step {sink.step.name} -> " if isinstance(sink, ThroughSpark) else ""
        lines.append(
            f"{pad}-> {step.name}  ({spark}{_sink_class(step)}, "
            f"every {policy.batch_rows} rows or {policy.batch_seconds:g} s)"
        )
        return
    traits = [step.kind.value]
    if step.workers > 1:
        traits.append(f"{step.workers} at once")
    if len(step.bolts) > 1:
        traits.append(f"{len(step.bolts)} tasks by {step.grouping and step.grouping.name}")
    if step.order is not Order.NONE:
        traits.append(f"in order per {step.order.value}")
    lines.append(f"{pad}-> {step.name}  ({', '.join(traits)})")
    for name, children in step.streams.items():
        for child in children:
            _indent(child, "" if name == DEFAULT_STREAM else name, depth + 1, lines, drawn)


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
