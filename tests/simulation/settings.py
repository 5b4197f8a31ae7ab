"""The settings of a seed's world, and the rare situations that a full run must visit."""

import random
from dataclasses import dataclass, replace
from typing import Literal

from partition.assignment import AssignmentPolicy
from partition.consumer import ConsumerPolicy
from partition.delivery import AtLeastOnce
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from partition.records import TransactionKind
from partition.recovery import StartPolicy
from transactions.groups import RangePolicy
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import TransactionPolicy

TOPICS = ("a", "b")
STEP_SECONDS = 0.01
TIMEOUT_SECONDS = 7.0
HANDOVER_SECONDS = 1.0
OUTAGE_SECONDS = 1_000.0  # between two hand-overs


Kind = Literal["by trees", "by records", "by ranges"]
# By seed: even and odd ones of each, as they end in different ways (see `healing`).
_KINDS = (
    "by trees", "by records", "by records", "by ranges",
    "by trees", "by records", "by ranges", "by trees",
)  # fmt: skip


def kind_of(seed):
    """How a seed's world keeps its promises.

    By trees (at least once), or exactly once, by the records of the local engine or the ranges
    of the spark engine.
    """
    return _KINDS[seed % len(_KINDS)]


def is_shared(seed):
    """Whether plans deal the partitions in a seed's world: in some of each kind, but on Spark."""
    return seed % 16 in {4, 9, 10, 12}


_BOTH = ("table-0", "table-1")


@dataclass(frozen=True, slots=True)
class Settings:
    """The shape of a world."""

    seed: int
    replicas: int
    partitions: tuple[int, ...]  # of each topic
    start_from: Literal["earliest", "latest"]
    on_loss: Literal["halt", "skip"]
    on_corrupt: Literal["halt", "skip"]
    max_pending: int
    max_pending_bytes: int
    limit: int
    max_behind: int | None
    exactly_once: bool
    by_ranges: bool  # on the spark engine
    kind: TransactionKind
    max_active: int
    records: int  # of a transaction, at most
    plan_records: int
    tables: int  # that each record's rows go to
    spooled: frozenset[str]  # tables of which only the driver can stage, on the spark engine
    refuses: int  # of one record in about so many such a table does not take a row
    shared: bool  # plans deal the partitions, which are given up in time

    @classmethod
    def of(cls, seed):
        rng = random.Random(f"settings {seed}")
        own = random.Random(f"transactions {seed}")
        spool = random.Random(f"spool {seed}")
        return cls(
            seed=seed,
            replicas=rng.choice([2, 2, 3]),
            partitions=rng.choice([(2,), (3,), (1, 2), (2, 1)]),
            start_from=rng.choice(["earliest", "earliest", "latest"]),
            on_loss=rng.choice(["skip", "skip", "skip", "halt"]),
            on_corrupt=rng.choice(["skip", "skip", "halt"]),
            max_pending=rng.choice([3, 5, 8, 16]),
            max_pending_bytes=rng.choice([40, 1000, 1000]),
            limit=rng.choice([1, 2, 3]),
            max_behind=rng.choice([None, None, None, 12]),
            exactly_once=kind_of(seed) != "by trees",
            by_ranges=kind_of(seed) == "by ranges",
            kind=own.choice(["transactional", "opaque"]),
            max_active=own.choice([1, 2, 3, 3]),
            records=own.choice([2, 4, 8]),
            plan_records=own.choice([1, 2, 4]),
            tables=own.choice([1, 2, 2]),
            spooled=frozenset(spool.choice([(), ("table-0",), ("table-1",), _BOTH, _BOTH])),
            refuses=spool.choice([7, 20, 1000]),
            shared=is_shared(seed),
        )

    @property
    def transactions(self):
        records = max(1, min(self.records, self.max_pending // self.max_active))
        return TransactionPolicy(self.kind, self.max_active, records, self.plan_records, 0.05)

    @property
    def ranges(self):
        return RangePolicy(self.records * 2, 0.3, self.max_active)

    def new_delivery(self, partition, ledger, progress, resumed):
        if not self.exactly_once:
            return AtLeastOnce(partition, ledger, progress)
        policy = replace(self.transactions, by_executors=self.by_ranges)
        return PartitionTransactions(partition, ledger, progress, resumed, policy)

    def policy(self, *, heal=False):
        """The reader's policy; when all is to heal, the operator has looked into every loss."""
        return ConsumerPolicy(
            assignment=AssignmentPolicy(
                start=StartPolicy(
                    start_from=self.start_from,
                    max_offset_behind=self.max_behind,
                    on_data_loss="skip" if heal else self.on_loss,
                    on_corrupt_record="skip" if heal else self.on_corrupt,
                ),
                limits=InFlightLimits(self.max_pending, self.max_pending_bytes),
                retries=RetryPolicy(
                    limit=self.limit, initial_seconds=0.2, multiplier=2.0, max_seconds=1.0
                ),
                discover_interval_seconds=2.0,
                delivery=self.new_delivery,
                shared=self.shared,
            ),
            commit_interval_seconds=0.1,
            fetch_records=20,
            chunk_records=4,
        )


REQUIRED = {
    "ack_before_init": "a tuple was acked before its tree's first message",
    "bolt_never_answered": "a tuple was never acked nor failed",
    "calls_held_while_suspended": "calls waited while their partition was claimed again",
    "commit_fenced": "a table refused a process that lives, as another has its line",
    "commit_landed_between_claim_and_fence": "a table took what the next owner then found there",
    "commit_of_a_dead_process_landed": "a transaction landed after its process had died",
    "commit_repeated": "a table was asked once more for what it had",
    "commit_of_a_dead_process_carried_out": "a commit landed after its sender had died",
    "corrupt_record": "a record's bytes rotted",
    "crash_between_sink_and_ack": "a batch was durable, and its writer died before it heard so",
    "crash_between_sink_and_commit": "a record was durable, and its process died before its ack",
    "crash_inside_a_commit": "a process died while a commit was on its way",
    "dead_letter": "a dead letter became durable",
    "dead_letter_refused": "a dead letter was refused",
    "drained": "a process was told to end, and ended with all of it stored",
    "duplicate_delivery": "records were delivered again",
    "emitted_with_zookeeper_away": "a process worked on without ZooKeeper",
    "fail_before_init": "a tuple failed before its tree's first message",
    "fenced_commit": "a commit was refused, because another process had taken over",
    "filtered_record": "a record became no tuple",
    "group_of_several_lines": "one commit carried transactions of several partitions",
    "full_of_uncommitted": "without ZooKeeper, all of a window was resolved and not stored",
    "full_window": "a partition's window was used up",
    "late_ack": "an edge was acked again after its tree had resolved",
    "late_ack_after_failure_or_expiry": "an ack came after its tree had failed or expired",
    "loss_behind": "a partition jumped, being too far behind",
    "loss_corrupt": "a corrupt record was skipped",
    "loss_expired": "retention deleted records before they were read",
    "loss_recreated": "a topic was deleted and created again",
    "loss_truncated": "a log was cut off below the offset to read next",
    "lost_commit_found_in_the_sink": "a commit's reply was lost, and it was there",
    "lost_commit_sent_again": "a commit was lost, and was not there",
    "lost_reply_that_had_landed": "a write was done and its reply lost",
    "lost_request_that_had_not": "a write was lost on its way",
    "lost_while_suspended_with_calls_that_wait": "a claim came too late, and calls waited for it",
    "lost_with_a_letter_on_its_way": "a partition was lost while a letter of it was not durable",
    "lost_with_rows_at_the_sink": "a partition was lost while rows of it were not durable",
    "multi_anchored_emit": "one tuple belonged to several trees",
    "node_created_again_by_hand": "an operator deleted a node and made it anew (ABA)",
    "node_damaged": "a node held what is no offset",
    "node_deleted": "a node was gone",
    "outage_longer_than_any_time_out": "a sink was away for long, and partitions changed hands",
    "partition_added_while_running": "a topic got one more partition",
    "partition_went_on_without_its_transactions": "an operator gave up what no log has any more",
    "planned_anew": "what no table had was planned anew (opaque)",
    "range_notice_durable": "a lost range was told in the dead letters",
    "replay_differs": "the log did not give the records of an open transaction again",
    "replayed_where_only_some_tables_have_it": "one table had a transaction, and one had not",
    "replayed_with_another_range": "under a txid came other records than before (opaque)",
    "request_carried_out_after_its_sender_gave_up": "a request arrived very late",
    "resumed_behind_what_every_table_has": "an open transaction was found to be committed",
    "retries_used_up": "a record failed as often as it may",
    "failed_in_a_lost_partition": "a record failed when another process had its partition",
    "retry": "a record was tried again",
    "retry_holds_later_transactions": "a record was retried while later transactions were open",
    "retry_of_a_compacted_record": "a record was tried again that its log holds no more",
    "retry_with_a_full_window": "a retry was due in a full window",
    "row_rejected_by_a_table": "a row did not fit a table",
    "session_ended_after_a_move_had_landed": "a session ended between a move and its reply",
    "session_ended_before_its_claims_ended": "the next session ended too before all was ours",
    "session_ended_in_a_recovery_with_records_waiting": "a session ended in a recovery",
    "session_ended_inside_a_claim": "a session ended while a partition was claimed",
    "session_ended_inside_a_commit": "a session ended while a commit was on its way",
    "session_ended_while_a_partition_opened": "a session ended while a partition was opened",
    "session_ended_with_a_halted_offset_not_stored": "a halted partition owed a commit",
    "session_expired_inside_a_commit": "the servers ended a session while a commit was on its way",
    "sink_reply_lost_and_batch_written_again": "a batch was written twice",
    "sink_write_failed_and_was_tried_again": "a batch failed at first",
    "takeover_from_a_living_process": "a partition was taken from a process that lived",
    "takeover_from_a_paused_process": "a partition was taken from a process that stood still",
    "takeover_inside_a_commit": "a partition was taken while its owner's commit was on its way",
    "thawed_after_its_session": "a process went on after its session had ended",
    "topic_created_again_larger_than_the_offset": "the new topic holds the old one's offset too",
    "transaction_grew": "a stored transaction was stored again with more records",
    "transaction_replayed": "an open transaction was replayed as it stood",
    "tree_expired": "a tree was too old",
    "truncation_while_in_flight": "a log was cut off while records of it were in flight",
    "wall_clock_jumped": "the wall clock jumped",
    "went_on_after_full_of_uncommitted": "a window was stored, and had room again",
    "zombie_commit_refused": "a table refused a process that had died",
    "zookeeper_away_again_before_the_claims_ended": "ZooKeeper came back for a short time",
    "planned_range_run_again": "a range that was only planned was run in another attempt",
    "range_group_failed": "a try of a group failed as a whole",
    "range_planned_anew": "a range that nobody had committed was planned anew",
    "range_sealed": "what a range held was stored",
    "sealed_range_run_again": "a range whose seal was stored was run again",
    "seal_given_up": "a range that no table had was to be read as it is now",
    "task_of_an_older_attempt_ran": "a task went on after its try had failed",
    "task_outlived_its_driver": "a task went on after its process had died",
    "task_ran_in_vain": "a task was done, and nobody heard of it",
    "letter_of_a_refused_row_repeated": "a record's letter was sent again by another try",
    "refused_row_committed_with_its_letter": "a table landed without a row that it had refused",
    "spooled_row_refused": "a row that came to the driver by a file did not fit its table",
    "spooled_rows_lost": "a file with rows on their way to the driver was gone",
    "task_waited_for_its_letters": "a task could not send the letters of refused rows",
    "try_ended_though_nobody_wanted_it": "a try was done before it could be stopped",
}
