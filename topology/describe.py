"""A topology as text, as Mermaid, and as plain facts."""

from typing import Any

from topology.topology import BoltStep, SinkStep, Source, Topology


def as_text(topology: Topology) -> str:
    """The topology as an indented tree."""
    lines = [f"topology {topology.name}"]
    for source in topology.sources:
        lines.append(f"  source {source.label}")
        for child in source.children:
            _indent(child, 2, lines)
    letters = topology.dead_letters.sink
    lines.append(f"  dead letters -> {letters.name if letters is not None else '(none)'}")
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
    parents: list[Source | BoltStep] = [*topology.sources]
    parents += [step for step in topology.steps() if isinstance(step, BoltStep)]
    for parent in parents:
        lines += [f"  {ids[id(parent)]} --> {ids[id(child)]}" for child in parent.children]
    letters = topology.dead_letters.sink
    if letters is not None:
        lines.append(f'  dead[("{_quoted(letters.name)}")]')
        lines += [
            f"  {ids[id(step)]} -. dead letters .-> dead"
            for step in topology.steps()
            if isinstance(step, BoltStep)
        ]
    return "\n".join(lines)


def as_facts(topology: Topology) -> dict[str, Any]:
    """The topology as JSON takes it."""
    letters = topology.dead_letters.sink
    return {
        "name": topology.name,
        "sources": [
            {"topic": source.label, "to": [child.name for child in source.children]}
            for source in topology.sources
        ],
        "steps": [_facts(step) for step in topology.steps()],
        "dead_letters": letters.name if letters is not None else None,
    }


def _facts(step: BoltStep | SinkStep) -> dict[str, Any]:
    if isinstance(step, SinkStep):
        return {
            "name": step.name,
            "kind": "sink",
            "sink": type(step.sink).__name__,
            "batch_rows": step.policy.batch_rows,
            "batch_bytes": step.policy.batch_bytes,
            "batch_seconds": step.policy.batch_seconds,
        }
    return {
        "name": step.name,
        "kind": step.kind.value,
        "workers": step.workers,
        "timeout_seconds": step.timeout_seconds,
        "to": [child.name for child in step.children],
    }


def _indent(step: BoltStep | SinkStep, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    if isinstance(step, SinkStep):
        policy = step.policy
        lines.append(
            f"{pad}-> {step.name}  ({type(step.sink).__name__}, "
            f"every {policy.batch_rows} rows or {policy.batch_seconds:g} s)"
        )
        return
    workers = f", {step.workers} at once" if step.workers > 1 else ""
    lines.append(f"{pad}-> {step.name}  ({step.kind.value}{workers})")
    for child in step.children:
        _indent(child, depth + 1, lines)


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
