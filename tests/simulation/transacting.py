"""A process's transactions on their way to the tables: the real `TransactionCommitter`.

Only the threads that talk to a sink are simulated. The life calls it in the order in which the
pipeline does.
"""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from acker.acker import Flags
from partition.consumer import Consumer
from partition.interfaces import StoredOffset
from partition.records import Partition, RecordIds, Resumed
from service.pipeline.committers import TransactionCommitter
from service.pipeline.fences import EpochFencer
from service.pipeline.sink_buffer import TransactionBuffer, WriterEvent
from sinks.memory import MemorySink
from tests.simulation.transaction_sink import Row, SimTable
from tests.simulation.transaction_writer import SimWriter
from tests.simulation.tuples import Tuple
from topology.steps import BatchPolicy, SinkStep

if TYPE_CHECKING:
    from tests.simulation.life import Life
    from tests.simulation.world import World

_POLICY = BatchPolicy(batch_rows=12, batch_seconds=1.0)
_BAD = 30  # one of so many rows does not fit


class SimFencing:
    """The real fencer, and what situations it met."""

    def __init__(self, world: "World", outlets: Iterable[Any]) -> None:
        writers = {outlet.name: outlet.writer for outlet in outlets}
        self._real = EpochFencer(world.settings.kind, writers)
        self._world = world
        self.fence, self.begin, self.poll = self._real.fence, self._real.begin, self._real.poll

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        """See `EpochFencer.resume`."""
        found = self._real.resume(partition, stored, committed)
        before = stored.transactions.open if stored.transactions is not None else ()
        seen = self._world.seen
        if len(found.transactions.open) + len(found.attempts) < len(before):
            seen("resumed_behind_what_every_table_has")
        if found.transactions.open:
            seen("transaction_replayed")
        if found.skips:
            seen("replayed_where_only_some_tables_have_it")
        if found.attempts:
            seen("planned_anew")
        return found


class SimTransacting:
    """Puts tuples into the tables as rows, and takes turns. `bind` comes before all else."""

    def __init__(self, life: "Life", tables: list[SimTable]) -> None:
        self._life = life
        self._tables = tables
        self._outlets = [self._outlet(table) for table in tables]
        self.fences = SimFencing(life.world, self._outlets)

    def bind(self, reader: Consumer) -> None:
        """Learn what reads."""
        trees: Any = SimpleNamespace(record_ids=self._life.acker.owners)
        self.real = TransactionCommitter(reader, trees, self._outlets, ())

    def _outlet(self, table: SimTable) -> TransactionBuffer:
        def hear(done: Any) -> None:
            self._life.inbox.append(lambda: self._take(WriterEvent(table.name, done)))

        writer: Any = SimWriter(table, self._life.world.wire, self._life, hear)
        return TransactionBuffer(SinkStep(table.name, MemorySink(), _POLICY), writer)

    def _take(self, event: WriterEvent) -> None:
        for refused in self.real.handle(event):
            self._life.world.seen("row_rejected_by_a_table")
            self._life.bury_record(refused.record_id)

    @property
    def is_idle(self) -> bool:
        """See `TransactionCommitter.is_idle`."""
        return self.real.is_idle

    def deliver(self, tuples: list[Tuple]) -> None:
        """Put tuples into the tables as rows, then ack them: a row has no edge."""
        life = self._life
        trees = np.array([tup.attempts[0].tree for tup in tuples], np.int64)
        record_ids = life.acker.owners(trees)
        for place, table in enumerate(self._tables):
            mine = [n for n, tup in enumerate(tuples) if place in tup.tables]
            piece = [
                Row(tuples[n].attempts[0], table.name, fits=life.rng.randrange(_BAD) > 0)
                for n in mine
            ]
            for row, n in zip(piece, mine, strict=True):
                if record_ids[n] >= 0:
                    row.attempt.rows.append(row)
            if piece:
                self.real.add(table.name, piece, trees[mine], None, life.world.now)
        for tup in tuples:
            tup.close()
            life.ack_tuple(tup)

    def processed(self, record_ids: RecordIds, flags: Flags) -> None:
        """Records whose trees have resolved."""
        self.real.resolved(record_ids, flags)

    def void(self, record_id: int) -> None:
        """A try has failed: none of its rows counts."""
        self.real.discard_attempt(record_id)

    def leftover(self) -> str | None:
        """Rows that are kept though no transaction of theirs is open; None: there are none."""
        for outlet in self._outlets:
            for place, collected in outlet.rows._partitions.items():
                line = self.real._owned.get(place)
                done = [txid for txid in collected if line is None or txid <= line.committed]
                if done:
                    return f"{outlet.name} keeps rows of place {place}, txids {done}"
        return None

    def turn(self, *, flush: bool) -> None:
        """One turn of the loop."""
        life = self._life
        flush = flush or life.draining
        self.real.step(life.world.now, flush=flush, plan=not life.draining)
