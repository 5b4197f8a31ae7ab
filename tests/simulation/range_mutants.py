"""Faults in the spark engine's transactions: ranges, seals, tries of groups (3, 10, 14, 15).

They are looked for in the seeds whose worlds run on that engine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from service.spark_engine.attempts import Attempt, Attempts
from service.spark_engine.engine import SparkEngine
from tests.simulation.mutants import Patches, around, mutant, put
from transactions.groups import GroupPhase, TransactionGroup, TransactionGroups
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import Phase

# Ranges


@mutant
def run_before_it_is_stored() -> Patches:
    """A range is run as soon as it is planned."""
    return [
        put(PartitionTransactions, "is_recorded", lambda line, txid: line._find(txid) is not None)
    ]


@mutant
def committed_before_its_seal_is_stored() -> Patches:
    """A range is committed when it is read, whatever its node says of it."""

    def is_ready(line: PartitionTransactions, txid: int) -> bool:
        found = line._find(txid)
        return found is not None and found.phase is Phase.PROCESSED

    return [put(PartitionTransactions, "is_ready", is_ready)]


@mutant
def seal_not_compared() -> Patches:
    """What another attempt has read is taken, whatever the one before it had read."""

    def read(line: PartitionTransactions, txid: int, attempt: int, *held: Any) -> bool:
        found = line._find(txid)
        if found is None or found.attempt != attempt:
            return False
        count, digest, epoch = held
        found.range = replace(found.range, count=count, digest=digest, leader_epoch=epoch)
        found.phase = Phase.PROCESSED
        line._wanted = None
        return True

    return [put(PartitionTransactions, "read", read)]


@mutant
def run_while_it_may_be_dropped() -> Patches:
    """A group keeps what is planned of a partition whose log may go on elsewhere."""

    def leave_out(original: Any, attempts: Attempts, index: int, *, at_once: bool) -> None:
        if at_once:
            original(attempts, index, at_once=True)

    def look(original: Any, engine: SparkEngine) -> Any:
        with around(Attempts, "leave_out", leave_out):
            return original(engine)

    return [around(SparkEngine, "_look", look)]


@mutant
def sealed_range_planned_anew() -> Patches:
    """What a table may have is planned anew where the log goes on elsewhere."""
    return [put(PartitionTransactions, "may_plan_anew", property(lambda _line: True))]


@mutant
def seal_always_given_up() -> Patches:
    """A range that is run again is sealed by what is read then, whoever has it."""
    return [put(PartitionTransactions, "_may_differ", lambda _line, _each: True)]


# Tries


@mutant
def older_try_taken() -> Patches:
    """The late result of an older try of a group is taken for the live one's."""

    def is_live(attempts: Attempts, ran: Attempt) -> bool:
        group = attempts.groups.of(ran.number)
        if group is None or group.phase is GroupPhase.PLANNED:
            return False
        if group.phase is GroupPhase.RUNNING:
            return group.members == ran.members
        return attempts.processed.get(ran.number) is ran

    def at(
        groups: TransactionGroups, number: int, _attempt: int, *phases: GroupPhase
    ) -> TransactionGroup | None:
        group = groups.of(number)
        return group if group is not None and group.phase in phases else None

    return [put(Attempts, "_is_live", is_live), put(TransactionGroups, "_at", at)]


@mutant
def later_not_failed() -> Patches:
    """A group that fails leaves those after it as they are, if they are read."""

    def again(groups: TransactionGroups, first: TransactionGroup) -> Sequence[TransactionGroup]:
        failed = []
        for group in groups._groups[groups._groups.index(first) :]:
            for each in group.members:
                each.line.fail(each.txid)
            if group is first or group.phase is not GroupPhase.PROCESSED:
                group.phase = GroupPhase.PLANNED
                failed.append(group)
        return failed

    return [put(TransactionGroups, "_again", again)]


@mutant
def failed_try_not_discarded() -> Patches:
    """What a try has made stays, though nobody will commit it."""

    def discard(attempts: Attempts, gone: Attempt) -> None:
        for work in gone.works.values():
            attempts._buffers[work.sink]._works.pop(work.number, None)
        gone.results, gone.works = (), {}

    return [put(Attempts, "_discard", discard)]


# Commits


@mutant
def group_committed_out_of_order() -> Patches:
    """The newest group that can be committed is, whatever is open below it."""

    def newest_first(groups: TransactionGroups) -> Iterator[TransactionGroup]:
        return iter(groups._groups[::-1])

    def next_commit(groups: TransactionGroups) -> TransactionGroup | None:
        group = groups._groups[-1]
        if group.phase is not GroupPhase.PROCESSED:
            return None
        if not all(each.line.is_ready(each.txid) for each in group.members):
            return None
        group.phase = GroupPhase.COMMITTING
        return group

    return [
        put(TransactionGroups, "__iter__", newest_first),
        put(TransactionGroups, "next_commit", next_commit),
    ]


class _NotLookedInto(dict[str, int]):
    """Has what it has, and says of nothing that it is there."""

    def get(self, _sink: str, default: Any = None) -> Any:
        return default


@mutant
def replayed_into_every_table() -> Patches:
    """What one of two tables has of a line is committed in both."""

    def begin(original: Any, line: PartitionTransactions, *rest: Any) -> None:
        original(line, *rest)
        line.skips = _NotLookedInto(line.skips)

    return [around(PartitionTransactions, "__init__", begin)]
