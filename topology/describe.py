"""A topology as text, as Mermaid, and as plain facts."""

from typing import Any

from topology.guarantees import guarantee_of
from topology.order import Order
from topology.signals import DEFAULT_STREAM
from topology.steps import BoltStep, SinkStep, Step
from topology.through_spark import ThroughSpark
from topology.topology import Topology


def as_text(topology: Topology) -> str:
    """The topology as an indented tree; what several streams lead to is drawn once."""
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


def as_mermaid(topology: Topology) -> str:
    """The topology as a Mermaid flow chart."""
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
    for source in topology.sources:
        lines += [f"  {ids[id(source)]} --> {ids[id(child)]}" for child in source.children]
    for step in topology.bolts():
        for stream, children in step.streams.items():
            arrow = "-->" if stream == DEFAULT_STREAM else f'-- "{_quoted(stream)}" -->'
            lines += [f"  {ids[id(step)]} {arrow} {ids[id(child)]}" for child in children]
    letters = topology.dead_letters.sink
    if letters is not None:
        lines.append(f'  dead[("{_quoted(letters.name)}")]')
        lines += [f"  {ids[id(step)]} -. dead letters .-> dead" for step in topology.bolts()]
    return "\n".join(lines)


def as_facts(topology: Topology) -> dict[str, Any]:
    """The topology as JSON takes it."""
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
            "sink": _called(step),
            "gives": guarantee_of(step.sink),
            "batch_rows": step.policy.batch_rows,
            "batch_bytes": step.policy.batch_bytes,
            "batch_seconds": step.policy.batch_seconds,
        }
    return {
        "name": step.name,
        "kind": step.kind.value,
        "workers": step.workers,
        "tasks": len(step.bolts),
        "grouping": _grouping(step),
        "order": step.order.value,
        "timeout_seconds": step.timeout_seconds,
        "to": {
            stream: [child.name for child in children] for stream, children in step.streams.items()
        },
    }


def _called(step: SinkStep) -> str:
    sink = step.sink
    return type(sink.sink if isinstance(sink, ThroughSpark) else sink).__name__


def _behind(step: SinkStep) -> str:
    return f"Spark step {step.sink.step.name} -> " if isinstance(step.sink, ThroughSpark) else ""


def _grouping(step: BoltStep) -> str | None:
    return type(step.grouping).__name__.lower() if step.grouping is not None else None


def _indent(step: Step, stream: str, depth: int, lines: list[str], drawn: set[Step]) -> None:
    pad = "  " * depth + (f"[{stream}] " if stream else "")
    if step in drawn:
        lines.append(f"{pad}-> {step.name}  (see above)")
        return
    drawn.add(step)
    if isinstance(step, SinkStep):
        policy = step.policy
        lines.append(
            f"{pad}-> {step.name}  ({_behind(step)}{_called(step)}, "
            f"every {policy.batch_rows} rows or {policy.batch_seconds:g} s)"
        )
        return
    lines.append(f"{pad}-> {step.name}  ({', '.join(_traits(step))})")
    for name, children in step.streams.items():
        for child in children:
            _indent(child, "" if name == DEFAULT_STREAM else name, depth + 1, lines, drawn)


def _traits(step: BoltStep) -> list[str]:
    traits = [step.kind.value]
    if step.workers > 1:
        traits.append(f"{step.workers} at once")
    if len(step.bolts) > 1:
        traits.append(f"{len(step.bolts)} tasks by {_grouping(step)}")
    if step.order is not Order.NONE:
        traits.append(f"in order per {step.order.value}")
    return traits


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
