"""Partitions that operators move: a log, a store and a pipeline's nodes in memory."""

from typing import Any

from partition.interfaces import StartFrom
from partition.memory import MemoryCatalogue
from partition.records import Partition, Position
from service.cli.common import OpenPipeline
from service.cli.offsets import MoveRequest, MoveRow, move_offsets
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from tests.worlds import compacting
from tests.worlds.compacting import FileSink
from tests.worlds.steering import NodesInMemory
from topology.topology import Topology

P = [Partition("numbers", number) for number in range(3)]
AT, ME, WHY = 1_800_000_000_000, "op@shell", "replay a day"


class World:
    """Three partitions whose logs hold 5 to 20; 0 and 1 are stored at 10 under epoch 1."""

    def __init__(self, topology: Topology | None = None) -> None:
        self.nodes = NodesInMemory()
        self.log = FaultyLog({"numbers": 3})
        for partition in P:
            for number in range(20):
                self.log.append(partition, b"x", timestamp_ms=1000 + number)
            self.log.delete_before(partition, 5)
            self.log.elect(partition)
        self.catalogue = MemoryCatalogue(self.log)
        self.stored = FaultyNodes()
        self.owner, self.store = self.opened(), self.opened()
        self.catalogue.open()
        self.topology = topology or compacting.topology_of([FileSink("a")])
        for partition in P[:2]:
            self.owner.claim(partition).result(0)
            self.owner.begin(partition, Position(10), 3).result(0)

    def opened(self) -> Any:
        made = FaultyStore(self.stored, pipeline="tables", topology_id="tables")
        made.open()
        return made

    def carry_out(self, request: MoveRequest) -> tuple[list[MoveRow], str | None]:
        settings: Any = None
        pipeline = OpenPipeline(self.topology, settings, "tables", self.catalogue, self.store)
        return move_offsets(pipeline, self.nodes.pipeline, request)

    def move(
        self, goals: dict[Partition, StartFrom], *, dry_run: bool = False
    ) -> dict[Partition, MoveRow]:
        request = MoveRequest(lambda _: goals, WHY, ME, AT, dry_run)
        return {row.partition: row for row in self.carry_out(request)[0]}

    def offsets(self) -> list[int | None]:
        found = [self.store.load(partition) for partition in P]
        return [None if each is None else each.offset for each in found]
