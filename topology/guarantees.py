"""Which guarantees a sink can give, and whether a topology's steps keep what it asks for."""

from collections.abc import Iterable
from typing import Any, get_args

from topology.bolt import Kind as BoltKind
from topology.errors import InvalidTopology
from topology.sink import Kind, Sink, innermost
from topology.steps import BoltStep, SinkStep, Step

_KEEPING = (  # of those that users have from headrace.sinks
    "DeltaSink, IcebergSink, KafkaTopicSink, MemorySink, PostgresSink, SparkSink"
)


def guarantee_of(sink: Sink[Any]) -> str:
    """The most that a sink gives, in words."""
    kinds = [kind for kind in get_args(Kind) if kind in sink.kinds]
    return f"exactly-once ({' and '.join(kinds)})" if kinds else "at-least-once"


def check_exactly_once(steps: Iterable[Step], kind: Kind) -> None:
    """Raise InvalidTopology, naming the step, unless all keep transactions of this kind."""
    for step in steps:
        if isinstance(step, SinkStep):
            _check_sink(step, kind)
        else:
            _check_bolt(step)


def _check_bolt(step: BoltStep) -> None:
    if step.kind is BoltKind.ADVANCED:
        message = (
            f"bolt '{step.name}' is an AdvancedBolt, which exactly-once does not allow: a row of "
            "several records belongs to no one transaction; any other bolt is allowed, or "
            "reliability='at-least-once'"
        )
        raise InvalidTopology(message)


def _check_sink(step: SinkStep, kind: Kind) -> None:
    if kind in step.sink.kinds:
        return
    # Only one that keeps some kind can keep another by being told to.
    advice = getattr(innermost(step.sink), "advice", "") if step.sink.kinds else ""
    obstacle = getattr(innermost(step.sink), "obstacle", "")
    message = (
        f"sink '{step.name}' ({_called(step.sink)}) gives {guarantee_of(step.sink)}"
        f"{f' ({obstacle})' if obstacle else ''}; "
        f"exactly-once ({kind}) is kept by {f'it with {advice}' if advice else _KEEPING}"
    )
    raise InvalidTopology(message)


def _called(sink: Sink[Any]) -> str:
    """Its class, what it was given (as it says in `given`), and those of the sinks behind it."""
    inner = getattr(sink, "sink", None)
    behind = f" before {_called(inner)}" if isinstance(inner, Sink) else ""
    given = getattr(sink, "given", "")
    return f"{type(sink).__name__}{given}{behind}"
