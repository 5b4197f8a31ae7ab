from typing import Any

from headrace.sinks import MemorySink, Sink


class Front(MemorySink[Any]):
    """Can keep transactions, and keeps those that the sink behind it keeps."""

    def __init__(self, sink: Sink[Any]) -> None:
        super().__init__(sink.name)
        self.sink, self.kinds = sink, sink.kinds
