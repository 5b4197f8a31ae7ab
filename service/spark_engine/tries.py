"""One try of a group: its tasks, what came of them, and what each sink has to do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from partition.records import Partition, Position
from service.pipeline.committers import share_of
from service.spark_engine.range_outlet import RangeOutlet, RangeWork
from service.spark_engine.task import RangeRead, Task, TaskDone, TaskRange, TaskSettings
from service.spark_engine.tasks import dealt
from topology.sink import Share, Stager
from transactions.groups import Member, TransactionGroup


@dataclass(slots=True, eq=False)
class Try:
    """A try that is under way, or whose rows wait for their commit."""

    number: int  # of the group
    attempt: int
    members: tuple[Member, ...]
    tasks: list[Task]
    stagers: dict[str, tuple[Stager, bool]]  # by sink step, and whether it stages apart
    results: tuple[TaskDone, ...] = ()
    works: dict[str, RangeWork] = field(default_factory=dict)
    fenced: dict[str, str] = field(default_factory=dict)
    """Lines for which a sink has refused the commit, and what it said."""
    waits_for: int = 0  # commits that are under way
    is_given_up: bool = False  # it is running, and nobody wants what comes of it

    @property
    def reads(self) -> list[RangeRead]:
        """What its ranges held."""
        return [each for done in self.results for each in done.ranges]

    def asked_at(self, partition: Partition) -> Position:
        """Where its tasks were to read a partition, as it was known then. Raises KeyError."""
        asked = {each.partition: each.position for task in self.tasks for each in task.ranges}
        return asked[partition]

    @property
    def is_staged(self) -> bool:
        """Whether every sink has it ready for the commit."""
        return bool(self.works) and all(work.is_staged for work in self.works.values())

    @property
    def is_done(self) -> bool:
        """Whether every sink has it."""
        return all(work.is_done for work in self.works.values())


class TryMaker:
    """Makes tasks of groups, and work for sinks of what they bring. The owner calls everything."""

    def __init__(
        self,
        outlets: Iterable[RangeOutlet],
        settings: TaskSettings,
        folder: str | None,
        references: Callable[[], Mapping[str, str]],
        epoch_of: Callable[[int], int],
    ) -> None:
        """`folder` is for rows on their way here; `references` writes tables that are new."""
        self._outlets = list(outlets)
        self._settings = settings
        self._folder = folder
        self._references = references
        self._epoch_of = epoch_of
        self._slots: dict[Partition, int] = {}  # where partitions were last

    def make(self, group: TransactionGroup, slots: int, patience_of: Callable[[int], int]) -> Try:
        """Tasks of a group that is to run now, in so many slots. Raises what the sinks raise.

        `patience_of` has, by place, how much longer than at first silence is waited for.
        """
        stagers = {outlet.name: outlet.stager(self._folder) for outlet in self._outlets}
        settings = replace(self._settings, references=dict(self._references()))
        ranges = [
            replace(self._range_of(group, each), patience=patience_of(each.place))
            for each in group.members
        ]
        patience = max(group.patience, *(each.patience for each in ranges))
        tasks = dealt(ranges, slots, self._slots)
        for slot, its_ranges in enumerate(tasks):
            self._slots.update((each.partition, slot) for each in its_ranges)
        by_sink = {name: stager for name, (stager, _) in stagers.items()}
        return Try(
            group.number,
            group.attempt,
            group.members,
            [
                Task(settings, group.number, tuple(each), by_sink, patience)
                for each in tasks
                if each
            ],
            stagers,
        )

    def _range_of(self, group: TransactionGroup, member: Member) -> TaskRange:
        place, line, txid = member
        skips, covers = line.skips, line.transaction_of(txid).range
        return TaskRange(
            line.partition,
            line.position_of(txid),
            covers.end,
            frozenset(e.name for e in self._outlets if txid <= skips.get(e.name, 0)),
            {offset: dict(by) for offset, by in group.refused.get(place, {}).items()},
            covers.leader_epoch,
        )

    def works(self, ran: Try) -> dict[str, RangeWork]:
        """What the tasks of a try have made for each sink."""
        return {
            outlet.name: RangeWork(
                outlet,
                *ran.stagers[outlet.name],
                tuple(each for done in ran.results for each in done.staged.get(outlet.name, ())),
            )
            for outlet in self._outlets
        }

    def shares(self, ran: Try, work: RangeWork) -> tuple[Share, ...]:
        """What a sink is to have of a try whose ranges are sealed: not what it has already."""
        return tuple(
            self._share(member, work)
            for member in ran.members
            if member.txid > member.line.skips.get(work.outlet.name, 0)
        )

    def _share(self, member: Member, work: RangeWork) -> Share:
        line = str(member.line.partition)
        transaction = member.line.transaction_of(member.txid)
        share = share_of(line, self._epoch_of(member.place), transaction)
        return replace(share, num_rows=work.rows_of(line))
