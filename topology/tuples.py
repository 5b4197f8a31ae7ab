"""Tuples, as advanced bolts hold them."""

from typing import Generic, TypeVar

import msgspec

from topology.signals import DEFAULT_STREAM

Value = TypeVar("Value")


class Tuple(msgspec.Struct, Generic[Value], eq=False):
    """A value on its way, and the record, or records, that it is anchored to.

    `source` is the step or the topic it comes from, `stream` that step's stream: so a join knows
    its sides. A bolt may keep a tuple and acks or fails it once. What it never acks nor fails
    expires with its tree; then the record comes again, as another tuple.
    """

    value: Value
    tree: int  # this and the edge are the pipeline's business
    edge: int
    source: str
    stream: str = DEFAULT_STREAM
    is_settled: bool = False  # acked or failed by the bolt
