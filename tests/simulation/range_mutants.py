"""Faults in the spark engine: ranges, seals, attempts, spooled and rejected rows (3, 10, 13-15).

They are looked for in the seeds whose worlds run on that engine.
"""

import hashlib
from dataclasses import replace

import numpy as np

from service.spark_engine import range_buffer, staging, task
from service.spark_engine.attempts import Attempts
from service.spark_engine.engine import SparkEngine
from service.spark_engine.range_buffer import RangeBuffer, RangeWork, StagedLost
from service.spark_engine.staging import TaskSink
from service.spark_engine.task import EVERY_ROW, RowFileStager
from tests.simulation.mutants import around, mutant, put, replaces, wraps
from transactions.groups import GroupPhase, TransactionGroups
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import Phase

# Ranges


@mutant
def run_before_it_is_stored():
    """A range is run as soon as it is planned."""
    return [
        put(PartitionTransactions, "is_recorded", lambda line, txid: line._find(txid) is not None)
    ]


@replaces(PartitionTransactions, "is_ready")
def committed_before_its_seal_is_stored(line, txid):
    """A range is committed when it is read, whatever its node says of it."""
    found = line._find(txid)
    return found is not None and found.phase is Phase.PROCESSED


@replaces(PartitionTransactions, "read")
def seal_not_compared(line, txid, attempt, *held):
    """What another attempt has read is taken, whatever the one before it had read."""
    found = line._find(txid)
    if found is None or found.attempt != attempt:
        return False
    count, digest, epoch = held
    found.range = replace(found.range, count=count, digest=digest, leader_epoch=epoch)
    found.phase = Phase.PROCESSED
    line._wanted = None
    return True


@mutant
def run_while_it_may_be_dropped():
    """A group keeps what is planned of a partition whose log may go on elsewhere."""

    def leave_out(original, attempts, index, *, at_once):
        if at_once:
            original(attempts, index, at_once=True)

    def look(original, engine):
        with around(Attempts, "leave_out", leave_out):
            return original(engine)

    return [around(SparkEngine, "_look", look)]


@replaces(PartitionTransactions, "replay_error")
def sealed_range_planned_anew(line, *, log_moved):
    """What a table may have is planned anew where the log goes on elsewhere."""
    del log_moved
    return line._differs


@mutant
def seal_always_given_up():
    """A range that is run again is sealed by what is read then, whoever has it."""
    return [put(PartitionTransactions, "_may_differ", lambda _line, _each: True)]


# Tries


@mutant
def older_try_taken():
    """The late result of an older try of a group is taken for the live one's."""

    def is_live(attempts, ran):
        group = attempts.groups.of(ran.number)
        if group is None or group.phase is GroupPhase.PLANNED:
            return False
        if group.phase is GroupPhase.RUNNING:
            return group.members == ran.members
        return attempts.processed.get(ran.number) is ran

    def at(groups, number, _attempt, *phases):
        group = groups.of(number)
        return group if group is not None and group.phase in phases else None

    return [put(Attempts, "_is_live", is_live), put(TransactionGroups, "_at", at)]


@replaces(TransactionGroups, "_again")
def later_not_failed(groups, first):
    """A group that fails leaves those after it as they are, if they are read."""
    failed = []
    for group in groups._groups[groups._groups.index(first) :]:
        for each in group.members:
            each.line.fail(each.txid)
        if group is first or group.phase is not GroupPhase.PROCESSED:
            group.phase = GroupPhase.PLANNED
            failed.append(group)
    return failed


@replaces(Attempts, "_discard")
def failed_try_not_discarded(attempts, gone):
    """What a try has made stays, though nobody will commit it."""
    for work in gone.works.values():
        attempts._buffers[work.sink]._works.pop(work.number, None)
    gone.results, gone.works = (), {}


# Commits


@mutant
def group_committed_out_of_order():
    """The newest group that can be committed is, whatever is open below it."""

    def newest_first(groups):
        return iter(groups._groups[::-1])

    def next_commit(groups):
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

    def get(self, _sink, default=None):
        return default


@wraps(PartitionTransactions, "__init__")
def replayed_into_every_table(original, line, *rest):
    """What one of two tables has of a line is committed in both."""
    original(line, *rest)
    line.skips = _NotLookedInto(line.skips)


# Files


@mutant
def spool_of_an_older_try():
    """Tries of a group write the same files: a late one changes those of the next, unnoticed."""

    class Named:
        def __init__(self, name):
            self.hex = name

    def stage(original, stager, group):
        shares = [(share.line, share.num_rows) for share in group.shares]
        name = hashlib.md5(f"{group.sequence} {shares}".encode()).hexdigest()  # noqa: S324
        with put(task.uuid, "uuid4", lambda: Named(name)):
            return original(stager, group)

    def begin(original, buffer, folder):
        with put(task.uuid, "uuid4", lambda: Named(buffer.name)):
            return original(buffer, folder)

    return [
        around(RowFileStager, "stage", stage),
        around(RangeBuffer, "begin", begin),
        put(task, "digest_of", lambda _data: b""),
        put(RangeWork, "discard", _stays),
    ]


@mutant
def spool_of_another_sink():
    """What tasks have spooled for one sink is staged by another."""

    def of_first(original, attempts, attempt):
        spooled = [work for work in attempt.works.values() if not work.is_apart]
        for work in spooled:
            work.stager, work.made = spooled[0].stager, spooled[0].made
        original(attempts, attempt)

    return [around(Attempts, "_seal", of_first), put(RangeWork, "discard", _stays)]


@mutant
def lost_spool_is_empty():
    """Files that are not there any more are taken for no rows."""

    def whole(original, group, made):
        try:
            return original(group, made)
        except StagedLost:
            shares = tuple(replace(share, num_rows=0) for share in group.shares)
            return replace(group, shares=shares, pieces=[], num_rows=0, offsets=np.empty(0, int))

    def stage(original, work, sink, group):
        return replace(original(work, sink, group), shares=group.shares)

    return [around(range_buffer, "_whole", whole), around(RangeWork, "stage", stage)]


@wraps(range_buffer, "_whole")
def spooled_rows_in_the_order_of_tasks(_original, group, made):
    """Rows are cut into shares as they come, whichever line they are of."""
    read = [rows for each in made for rows in task.read_rows(each)]
    pieces = [piece for _line, its_pieces, _offsets in read for piece in its_pieces]
    offsets = np.concatenate([np.empty(0, np.int64), *(offsets for _, _, offsets in read)])
    return replace(group, pieces=pieces, offsets=offsets)


def _stays(_work):
    """No file is removed, as another try or sink is to find it."""


# Rows that are refused


@wraps(RangeWork, "stage")
def refused_row_without_a_letter(original, work, sink, group):
    """A row that the driver's sink refuses is left out, and that is all."""
    return replace(original(work, sink, group), rejected={})


@wraps(range_buffer, "source_of")
def refusal_of_another_record(original, group, row):
    """The record after the refused row's own gets the letter."""
    found = original(group, row)
    return found._replace(offset=found.offset + 1)


@mutant
def refusal_of_every_row_of_the_record():
    """Of a record of which one row is refused, none is left."""
    return [put(staging, "reason_of", lambda reasons, _place: next(iter(reasons.values())))]


@wraps(range_buffer, "source_of")
def refusal_of_another_row_of_the_record(original, group, row):
    """The row before the refused one is left out, and then all are, as it is refused again."""
    found = original(group, row)
    return found._replace(row=max(0, found.row - 1))


@wraps(TransactionGroups, "refuse")
def refusal_in_every_sink(original, groups, number, by):
    """A record that one sink refuses is left out of all of them."""
    sinks = ["table-0", "table-1"]
    everywhere = {
        place: {offset: {sink: {EVERY_ROW: "unfit"} for sink in sinks} for offset in offsets}
        for place, offsets in by.items()
    }
    original(groups, number, everywhere)


@wraps(TaskSink, "stage")
def refused_rows_are_only_left_out(original, sink, *section):
    """A task leaves refused rows out, and sends no letter of them."""
    original(sink, *section)
    return {}


@replaces(Attempts, "_reject")
def refused_group_is_committed(attempts, _attempt, work, *_told):
    """A group of which a sink has refused rows is committed as it is, and not run again."""
    attempts._buffers[work.sink].rows_rejected += 1
