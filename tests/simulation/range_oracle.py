"""The oracle's part for worlds on the spark engine: ranges, planned and sealed, and what they hold.

Beside T1, T3, T5 and T7 of transaction_oracle.py: R1 no range is run, in any attempt, that does
not stand in its node so. R2 what was planned is sealed once, and stays as it is then; nothing is
committed before its seal stands in the node. R3 what lands of a range is what one run of it
made, of the transaction's live attempt, whole, and not discarded. R4 what no table has got is
discarded by a process that lives.
"""

from typing import TYPE_CHECKING, Any

from partition.chunk import Partition
from tests.simulation.errors import Violation
from tests.simulation.kafka import SimRecord
from tests.simulation.range_tasks import TaskRows
from tests.simulation.recorded import Open, Recorded
from tests.simulation.transaction_oracle import TransactionOracle

if TYPE_CHECKING:
    from tests.simulation.life import Life
    from tests.simulation.transaction_sink import SimTable
    from tests.simulation.world import World


class RangeOracle(TransactionOracle):
    """Every check of ranges. Raises Violation."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._lowest: dict[Partition, Open | None] = {}  # that was open before this write

    def written(
        self,
        sender: "Life",
        partition: Partition,
        old: Recorded | None,
        new: Recorded | None,
        *,
        offset: int,
    ) -> None:
        """See `TransactionOracle.written`."""
        self._lowest[partition] = old.open[0] if old is not None and old.open else None
        super().written(sender, partition, old, new, offset=offset)

    def submitted(self, life: "Life", partition: Partition, first: int, end: int) -> int:
        """A range is given to executors; in which attempt."""
        for each in self._written.get((life.name, partition), {}).values():
            if (each.first, each.end) == (first, end):
                user = self._users.setdefault((partition, each.txid, each.attempt), life.name)
                if user != life.name:
                    raise Violation(14, f"{life.name} runs {each}, an attempt of {user}")
                if each.digest is not None:
                    self._world.seen("sealed_range_run_again")
                elif each.attempt > 1:
                    self._world.seen("planned_range_run_again")
                return each.attempt
        raise Violation(14, f"{life.name} runs {partition} {first} to {end}, which is not stored")

    def _removed(self, partition: Partition, gone: Open, old: Recorded, new: Recorded) -> None:
        super()._removed(partition, gone, old, new)
        if gone.txid > new.committed:  # whoever plans it anew knows nothing of its attempts
            key = (partition, gone.txid)
            self._users = {each: user for each, user in self._users.items() if each[:2] != key}

    def _may_be_dropped(self, old: Recorded, new: Recorded) -> bool:
        """Nor does anyone miss what was only planned, with all that comes after it."""
        left = [each for each in old.open if each.txid > new.committed]
        return super()._may_be_dropped(old, new) or left[0].digest is None

    def _changed(self, partition: Partition, was: Open, now: Open, *, own: bool) -> None:
        if now.attempt < was.attempt:
            raise Violation(14, f"{partition}: {was} went back to {now}")
        has = any(self.txid_of(table, partition) >= was.txid for table in self._world.tables)
        if now[2:] == was[2:]:
            return
        if has:
            raise Violation(14, f"{partition}: {was} became {now}, and a table has it")
        if (now.first, now.end) == (was.first, was.end) and was.digest is None:
            if now.attempt == was.attempt and not own:
                raise Violation(14, f"{partition}: {was} of another process became {now}")
            self._world.seen("range_sealed")
            return
        if now.attempt == was.attempt:
            raise Violation(14, f"{partition}: {was} became {now}")
        if was.digest is not None and self._world.settings.kind == "transactional":
            lowest = self._lowest.get(partition)
            if lowest is None or lowest.digest is not None:
                raise Violation(14, f"{partition}: {was} was replayed as {now}")
        is_same_place = (now.first, now.end) == (was.first, was.end)
        self._world.seen("seal_given_up" if is_same_place else "range_planned_anew")

    def _records_of(
        self,
        what: str,
        table: "SimTable",
        sender: "Life",
        partition: Partition,
        stored: Open,
        rows: list[Any],
    ) -> frozenset[SimRecord]:
        parts: list[TaskRows] = rows
        if len(parts) != 1:
            raise Violation(3, f"{what} has what {len(parts)} runs have made")
        part, run = parts[0], parts[0].run
        if part.is_discarded:
            raise Violation(3, f"{what} has rows that were discarded")
        if run.life is not sender or (run.first, run.end) != (stored.first, stored.end):
            raise Violation(14, f"{what} has what {run.life.name} made of {run.first} to {run.end}")
        if run.attempt != stored.attempt:
            raise Violation(14, f"{what} has what attempt {run.attempt} made: {stored}")
        if part.table != table.name:
            raise Violation(14, f"{what} has rows for {part.table}")
        self._are_the_stored(what, stored, run.records)
        part.is_landed = True
        return frozenset(run.records)
