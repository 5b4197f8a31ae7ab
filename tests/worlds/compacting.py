"""Tables whose files are only noted, and a topology of them for commands to load."""

from collections.abc import Sequence
from typing import Any

from headrace import Record, Topology, bolt
from headrace.sinks import Batch, MemoryDeadLetters, Sink, SinkContext
from topology.compaction import Compaction

TARGET = "tests.worlds.compacting:topology"


class FileSink(Sink[Any]):
    """A table of files of some sizes, in bytes. `error` is raised when it is compacted."""

    def __init__(self, name: str, *sizes: int, error: Exception | None = None) -> None:
        self.name = name
        self.sizes = list(sizes)
        self.error = error
        self.calls: list[str] = []
        self.context: SinkContext | None = None

    def open(self, context: SinkContext) -> None:
        self.calls.append("open")
        self.context = context

    def write(self, batch: Batch) -> None:
        raise AssertionError("no row comes here")

    def close(self) -> None:
        self.calls.append("close")

    def compact(self, target_bytes: int) -> Compaction:
        """Join all files below the target into one."""
        self.calls.append(f"compact {target_bytes}")
        if self.error is not None:
            raise self.error
        small = [size for size in self.sizes if size < target_bytes]
        if len(small) < 2:
            return Compaction(0, 0, 0)
        self.sizes = [size for size in self.sizes if size >= target_bytes] + [sum(small)]
        return Compaction(len(small), 1, sum(small))

    def data_files(self) -> list[str]:
        """A path for each."""
        return [f"/tables/{self.name}/{at}-{size}" for at, size in enumerate(self.sizes)]


@bolt
def passes(record: Record) -> int:
    return record.offset


def topology_of(sinks: Sequence[Sink[Any]]) -> Topology:
    """A topology that writes everything into each of these."""
    made = Topology("tables")
    rows = made.source("numbers").then(passes)
    for sink in sinks:
        rows.into(sink)
    made.dead_letters.into(MemoryDeadLetters())
    return made


topology = topology_of([FileSink("orders")])
