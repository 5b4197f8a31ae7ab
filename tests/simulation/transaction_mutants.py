"""Faults in what makes rows come exactly once: numbering, ranges, fences, rows, commits (3, 9, 14).

They are looked for in the seeds whose worlds run exactly once.
"""

from contextlib import suppress
from dataclasses import replace

from partition.offsets.requests import ReplyLost
from partition.records import OpenTransaction, Transactions, partition_index_of
from service.pipeline import committers
from service.pipeline.committers import TransactionCommitter
from sinks.writer import BatchCommitted
from tests.simulation.mutants import around, mutant, put, replaces, wraps
from tests.simulation.transacting import SimTable, SimWriter
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from transactions import partition_transactions
from transactions.partition_transactions import PartitionTransactions
from transactions.pending_rows import PendingRows
from transactions.transaction import Phase

_ALWAYS = 1 << 30


# Numbers


@wraps(committers, "resumed")
def lower_txid_skipped(original, partition, stored, *rest):
    """A process numbers its transactions from a lower txid on, and the tables skip those."""
    found = original(partition, stored, *rest)
    if found.transactions.open or not found.transactions.committed:
        return found
    return replace(found, transactions=replace(found.transactions, committed=0))


@mutant
def lower_txid_written_again():
    """A table does not look whether it has a transaction already."""
    return [put(SimTable, "has", lambda _table, _share: False)]


@mutant
def commit_out_of_order():
    """A transaction is committed when it can be, whatever is open below it."""

    def ready(line):
        for each in reversed(line._open):
            if each.txid > line.grouped_to and line.is_ready(each.txid):
                line.grouped_to = each.txid - 1
                return each
        return None

    def take(line, txid):
        found = line.transaction_of(txid)
        found.phase = Phase.COMMITTING
        return found

    return [put(PartitionTransactions, "ready", ready), put(PartitionTransactions, "take", take)]


@wraps(PartitionTransactions, "__init__")
def attempt_forgotten(original, line, *rest):
    """A transaction that is replayed keeps its attempt, as if nobody had tried it."""
    original(line, *rest)
    for each, found in zip(line._open, line._resumed.transactions.open, strict=True):
        each.attempt = found.attempt


@mutant
def max_active_ignored():
    """However many transactions are open, another one begins."""
    return [put(PartitionTransactions, "may_begin", property(lambda _line: True))]


# Ranges


@mutant
def ranges_not_persisted():
    """What is planned is not written into the node."""

    def to_store(original, line):
        planned = original(line)
        return replace(planned, open=())

    def stored(original, line, progress):
        planned = tuple(OpenTransaction(e.txid, e.attempt, e.range) for e in line._open)
        transactions = Transactions(line._policy.kind, line.committed, planned)
        original(line, replace(progress, transactions=transactions))

    return [
        around(PartitionTransactions, "to_store", to_store),
        around(PartitionTransactions, "on_stored", stored),
    ]


@replaces(PartitionTransactions, "emit_limit")
def emitted_before_stored(line, _room, _ahead):
    """What is planned is emitted at once."""
    return line._ledger.waiting_below(min(line.planned_to, line.ends_at))


@wraps(PartitionTransactions, "_fill")
def growth_emitted_before_stored(original, line, *rest):
    """What a stored transaction grows by is emitted at once."""
    grows = line.filling is not None and line.filling.stored is not None
    original(line, *rest)
    if grows:
        line.open_to = line.planned_to


@mutant
def committed_before_it_is_closed():
    """A transaction is committed when its records are processed, and grows on."""

    def is_ready(line, txid):
        each = line.transaction_of(txid)
        return each.emitted == each.processed == each.range.count and each.is_stored

    def take(line, txid):
        return line.transaction_of(txid)

    def done(original, line, txid):
        line.transaction_of(txid).phase = Phase.COMMITTING
        return original(line, txid)

    return [
        put(PartitionTransactions, "is_ready", is_ready),
        put(PartitionTransactions, "take", take),
        around(PartitionTransactions, "done", done),
    ]


@wraps(PartitionTransactions, "_came_again")
def replayed_one_grows(original, line, each):
    """A transaction that was found recorded is not closed."""
    original(line, each)
    if each is line._open[-1]:
        each.phase = Phase.FILLING


@mutant
def digest_not_compared():
    """Whatever the log gives for a recorded range is taken for its records."""
    return [put(partition_transactions, "is_again", lambda _was, _now: True)]


# Fences


@replaces(SimTable, "raise_epoch")
def fence_forgotten(table, line, epoch):
    """A table says what it has, and lets the former owner commit on."""
    table._oracle.fenced(table, line, epoch)


@wraps(SimWriter, "_fence")
def last_txid_read_before_the_fence(original, writer, those):
    """A table is asked what it has, and then fenced."""
    found = None
    while found is None:
        with suppress(ReplyLost):
            found = yield lambda: writer.table.committed([fence.line for fence in those])
    raised = yield from original(writer, those)
    return raised if isinstance(raised, Exception) else found


@wraps(committers, "resumed")
def partly_committed_planned_anew(original, partition, stored, committed, kind):
    """What only one of two tables has is planned anew."""
    least = min(committed.values(), default=0)
    return original(partition, stored, dict.fromkeys(committed, least), kind)


# Rows and letters


@mutant
def void_forgotten():
    """The rows of a failed try stay."""
    return [put(PendingRows, "discard_attempt", lambda _rows, _record_id: None)]


@wraps(PendingRows, "discard_attempt")
def void_for_good(original, rows, record_id):
    """A record that failed once has no rows any more."""
    original(rows, record_id)
    for collected in rows._partitions.get(partition_index_of(record_id), {}).values():
        collected.discarded[record_id] = _ALWAYS


@mutant
def letter_of_a_rejected_row_not_awaited():
    """A transaction is committed while a letter of one of its records is out."""
    return [put(PartitionTransactions, "awaits", lambda _line, _offset: True)]


# Commits


@wraps(TransactionCommitter, "_end_if_done")
def done_before_every_table(original, committer, group):
    """A transaction is done when one of two tables has it."""
    works = committer._works[group.number].values()
    if any(work.is_done and work.parts for work in works):
        for place, line, txid in group.members:
            if txid == line.committed + 1:
                committer._consumer.resolve_below(place, line.done(txid).end)
    if all(work.is_done for work in works):
        committer._groups._groups.remove(group)


@wraps(TransactionCommitter, "_commit_next")
def done_before_its_commit(original, committer):
    """Records are resolved when their transaction is staged."""
    for group in committer._groups._groups[:1]:
        for place, line, txid in group.members:
            committer._consumer.resolve_below(place, line.transaction_of(txid).range.end)
    return original(committer)


@wraps(SimWriter, "_commit")
def unknown_commit_taken_for_done(original, writer, staged):
    """A commit whose reply was lost counts as done."""
    try:
        yield lambda: writer.table.commit(writer._life, staged)
    except ReplyLost:
        pass
    except (SinkBusy, SinkFenced, SinkFailed):
        return (yield from original(writer, staged))
    return BatchCommitted(writer.table.name, staged, None, 0.0)
