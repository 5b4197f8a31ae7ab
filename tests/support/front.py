"""A sink that stands in front of another."""

from typing import Any, ClassVar

from headrace.sinks import MemorySink, Sink
from topology.transactional import Kind


class Front(MemorySink[Any]):
    """Can keep transactions, and keeps those that the sink behind it keeps."""

    kinds: ClassVar[frozenset[Kind]] = frozenset()

    def __init__(self, sink: Sink[Any]) -> None:
        super().__init__(sink.name)
        self.sink = sink
