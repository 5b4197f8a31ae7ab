"""Tables whose files are only noted, and a topology of them for commands to load."""

from collections.abc import Sequence
from typing import Any

from headrace import Record, Topology, bolt
from headrace.sinks import MemoryDeadLetters, Sink, SinkContext
from topology.sink import Compaction, Maintenance, Removal, Staged

TARGET = "tests.worlds.compacting:topology"


class FileSink(Sink[Any]):
    """A table of files of some sizes, in bytes. `error` is raised when it is maintained."""

    def __init__(self, name: str, *sizes: int, error: Exception | None = None) -> None:
        self.name = name
        self.sizes = list(sizes)
        self.error = error
        self.calls: list[str] = []
        self.context: SinkContext | None = None

    def open(self, context: SinkContext) -> None:
        self.calls.append("open")
        self.context = context

    def commit(self, staged: Staged) -> None:
        raise AssertionError("no row comes here")

    def close(self) -> None:
        self.calls.append("close")

    def maintenance(self) -> Maintenance:
        return self

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        self._asked(f"compact {target_bytes}", dry_run=dry_run)
        small = [size for size in self.sizes if size < target_bytes]
        if len(small) < 2:
            return Compaction(0, 0, 0)
        if not dry_run:
            self.sizes = [size for size in self.sizes if size >= target_bytes] + [sum(small)]
        return Compaction(len(small), 1, sum(small))

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> Removal:
        self._asked(f"vacuum {older_than_hours}", dry_run=dry_run)
        return Removal(0, len(self.sizes))

    def expire(self, *, dry_run: bool = False) -> Removal:
        self._asked("expire", dry_run=dry_run)
        return Removal(len(self.sizes), 0)

    def _asked(self, what: str, *, dry_run: bool) -> None:
        self.calls.append(f"{what} dry" if dry_run else what)
        if self.error is not None:
            raise self.error

    def data_files(self) -> list[str]:
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
