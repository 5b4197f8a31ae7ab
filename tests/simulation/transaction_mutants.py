"""Faults in what makes rows come exactly once: numbering, ranges, fences, rows, commits (3, 9, 14).

They are looked for in the seeds whose worlds run exactly once.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from partition.interfaces import Progress
from partition.offsets.requests import OutcomeUnknown
from partition.records import OpenTransaction, Resumed, Transactions
from service.pipeline import fences
from service.pipeline.committers import TransactionCommitter
from sinks.writer import BatchCommitted
from tests.simulation.mutants import Patches, around, mutant, put
from tests.simulation.transaction_sink import SimTable
from tests.simulation.transaction_writer import SimWriter
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.sink import Staged
from transactions import partition_transactions
from transactions.groups import TransactionGroup
from transactions.partition_transactions import PartitionTransactions
from transactions.pending_rows import PendingRows
from transactions.transaction import Phase, Transaction

_ALWAYS = 1 << 30


# Numbers


@mutant
def lower_txid_skipped() -> Patches:
    """A process numbers its transactions from a lower txid on, and the tables skip those."""

    def resumed(original: Any, partition: Any, stored: Any, *rest: Any) -> Resumed:
        found: Resumed = original(partition, stored, *rest)
        if found.transactions.open or not found.transactions.committed:
            return found
        return replace(found, transactions=replace(found.transactions, committed=0))

    return [around(fences, "resumed", resumed)]


@mutant
def lower_txid_written_again() -> Patches:
    """A table does not look whether it has a transaction already."""
    return [put(SimTable, "has", lambda _table, _share: False)]


@mutant
def commit_out_of_order() -> Patches:
    """A transaction is committed when it can be, whatever is open below it."""

    def ready(line: PartitionTransactions) -> Any:
        for each in reversed(line._open):
            if each.txid > line.grouped_to and line.is_ready(each.txid):
                line.grouped_to = each.txid - 1
                return each
        return None

    def take(line: PartitionTransactions, txid: int) -> Transaction:
        found = line.transaction_of(txid)
        found.phase = Phase.COMMITTING
        return found

    return [put(PartitionTransactions, "ready", ready), put(PartitionTransactions, "take", take)]


@mutant
def attempt_forgotten() -> Patches:
    """A transaction that is replayed keeps its attempt, as if nobody had tried it."""

    def begin(original: Any, line: PartitionTransactions, *rest: Any) -> None:
        original(line, *rest)
        for each, found in zip(line._open, line._resumed.transactions.open, strict=True):
            each.attempt = found.attempt

    return [around(PartitionTransactions, "__init__", begin)]


@mutant
def max_active_ignored() -> Patches:
    """However many transactions are open, another one begins."""
    return [put(PartitionTransactions, "may_begin", property(lambda _line: True))]


# Ranges


@mutant
def ranges_not_persisted() -> Patches:
    """What is planned is not written into the node."""

    def to_store(original: Any, line: PartitionTransactions) -> Transactions:
        planned: Transactions = original(line)
        return replace(planned, open=())

    def stored(original: Any, line: PartitionTransactions, progress: Progress) -> None:
        planned = tuple(OpenTransaction(e.txid, e.attempt, e.range) for e in line._open)
        transactions = Transactions(line._policy.kind, line.committed, planned)
        original(line, replace(progress, transactions=transactions))

    return [
        around(PartitionTransactions, "to_store", to_store),
        around(PartitionTransactions, "on_stored", stored),
    ]


@mutant
def emitted_before_stored() -> Patches:
    """What is planned is emitted at once."""

    def emit_limit(line: PartitionTransactions, _room: int, _ahead: int) -> int:
        return line._ledger.waiting_below(min(line.planned_to, line.ends_at))

    return [put(PartitionTransactions, "emit_limit", emit_limit)]


@mutant
def growth_emitted_before_stored() -> Patches:
    """What a stored transaction grows by is emitted at once."""

    def fill(original: Any, line: PartitionTransactions, *rest: Any) -> None:
        grows = line.filling is not None and line.filling.stored is not None
        original(line, *rest)
        if grows:
            line.open_to = line.planned_to

    return [around(PartitionTransactions, "_fill", fill)]


@mutant
def committed_before_it_is_closed() -> Patches:
    """A transaction is committed when its records are processed, and grows on."""

    def is_ready(line: PartitionTransactions, txid: int) -> bool:
        each = line.transaction_of(txid)
        return each.emitted == each.processed == each.range.count and each.is_stored

    def take(line: PartitionTransactions, txid: int) -> Transaction:
        return line.transaction_of(txid)

    def done(original: Any, line: PartitionTransactions, txid: int) -> Any:
        line.transaction_of(txid).phase = Phase.COMMITTING
        return original(line, txid)

    return [
        put(PartitionTransactions, "is_ready", is_ready),
        put(PartitionTransactions, "take", take),
        around(PartitionTransactions, "done", done),
    ]


@mutant
def replayed_one_grows() -> Patches:
    """A transaction that was found recorded is not closed."""

    def came_again(original: Any, line: PartitionTransactions, each: Transaction) -> None:
        original(line, each)
        if each is line._open[-1]:
            each.phase = Phase.FILLING

    return [around(PartitionTransactions, "_came_again", came_again)]


@mutant
def digest_not_compared() -> Patches:
    """Whatever the log gives for a recorded range is taken for its records."""
    return [put(partition_transactions, "is_again", lambda _was, _now: True)]


# Fences


@mutant
def fence_forgotten() -> Patches:
    """A table says what it has, and lets the former owner commit on."""

    def raise_epoch(table: SimTable, line: str, epoch: int) -> None:
        table._oracle.fenced(table, line, epoch)

    return [put(SimTable, "raise_epoch", raise_epoch)]


@mutant
def last_txid_read_before_the_fence() -> Patches:
    """A table is asked what it has, and then fenced."""

    def fence(original: Any, writer: SimWriter, those: Any) -> Any:
        found = None
        while found is None:
            with suppress(OutcomeUnknown):
                found = yield lambda: writer.table.committed([fence.line for fence in those])
        raised = yield from original(writer, those)
        return raised if isinstance(raised, Exception) else found

    return [around(SimWriter, "_fence", fence)]


@mutant
def partly_committed_planned_anew() -> Patches:
    """What only one of two tables has is planned anew."""

    def resumed(original: Any, partition: Any, stored: Any, committed: Any, kind: Any) -> Resumed:
        least = min(committed.values(), default=0)
        found: Resumed = original(partition, stored, dict.fromkeys(committed, least), kind)
        return found

    return [around(fences, "resumed", resumed)]


# Rows and letters


@mutant
def void_forgotten() -> Patches:
    """The rows of a failed try stay."""
    return [put(PendingRows, "discard_attempt", lambda _rows, _record_id, _index: None)]


@mutant
def void_for_good() -> Patches:
    """A record that failed once has no rows any more."""

    def discard(original: Any, rows: PendingRows, record_id: int, index: int) -> None:
        original(rows, record_id, index)
        for collected in rows._partitions.get(index, {}).values():
            collected.discarded[record_id] = _ALWAYS

    return [around(PendingRows, "discard_attempt", discard)]


@mutant
def letter_of_a_rejected_row_not_awaited() -> Patches:
    """A transaction is committed while a letter of one of its records is out."""
    return [put(PartitionTransactions, "awaits", lambda _line, _offset: None)]


# Commits


@mutant
def done_before_every_table() -> Patches:
    """A transaction is done when one of two tables has it."""

    def end(original: Any, committer: TransactionCommitter, group: TransactionGroup) -> None:
        works = committer._works[group.number].values()
        if any(work.is_done and work.parts for work in works):
            for place, line, txid in group.members:
                if txid == line.committed + 1:
                    committer._consumer.resolve_below(place, line.done(txid).end)
        if all(work.is_done for work in works):
            committer._groups._groups.remove(group)

    return [around(TransactionCommitter, "_end_if_done", end)]


@mutant
def done_before_its_commit() -> Patches:
    """Records are resolved when their transaction is staged."""

    def commit(original: Any, committer: TransactionCommitter) -> Any:
        for group in committer._groups._groups[:1]:
            for place, line, txid in group.members:
                committer._consumer.resolve_below(place, line.transaction_of(txid).range.end)
        return original(committer)

    return [around(TransactionCommitter, "_commit_next", commit)]


@mutant
def unknown_commit_taken_for_done() -> Patches:
    """A commit whose reply was lost counts as done."""

    def commit(original: Any, writer: SimWriter, staged: Staged) -> Any:
        try:
            yield lambda: writer.table.commit(writer._life, staged)
        except OutcomeUnknown:
            pass
        except (SinkBusy, SinkFenced, SinkFailed):
            return (yield from original(writer, staged))
        return BatchCommitted(staged, None, 0.0)

    return [around(SimWriter, "_commit", commit)]
