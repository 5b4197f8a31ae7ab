"""Faults in what a process does when its session ends, or ZooKeeper is away (9, 10, 15)."""

from typing import Any

from partition.assigned_partition import PartitionState
from partition.assignment import Assignment
from partition.delivery import AtLeastOnce
from partition.errors import OwnershipLost
from partition.flow_control import FlowControl
from partition.records import Partition
from tests.simulation.mutants import Patches, around, mutant, put
from transactions.partition_transactions import PartitionTransactions


@mutant
def emits_without_a_claim() -> Patches:
    """A partition that was opened runs, though the session of its claim is over."""

    def run(original: Any, assignment: Assignment, held: Any, opened: Any) -> None:
        held.session = assignment._ways.store.session
        original(assignment, held, opened)

    return [around(Assignment, "_run", run)]


@mutant
def uncommitted_not_counted() -> Patches:
    """The window reaches from the frontier, however little of it is stored."""
    return [
        put(AtLeastOnce, "in_flight", lambda mode: mode._ledger.emitted_count),
        put(PartitionTransactions, "in_flight", lambda mode: mode._ledger.emitted_count),
    ]


@mutant
def refuse_forgets_what_is_under_way() -> Patches:
    """Who loses a partition while it is mended takes it back, and mends it no more."""

    def refuse(original: Any, assignment: Assignment, partition: Partition, error: Any) -> None:
        held = assignment[partition]
        was_under_way = held.chain is not None
        original(assignment, partition, error)
        if was_under_way and isinstance(error, OwnershipLost):
            held.retry_at = held.trouble = None
            if held.state is PartitionState.RECOVERING:
                held.state = PartitionState.READING

    return [around(Assignment, "refuse", refuse)]


@mutant
def not_owned_and_not_paused() -> Patches:
    """What waits for its claim is fetched on and on."""

    def pause(original: Any, flow: FlowControl, held: Any) -> None:
        if held.is_owned:
            original(flow, held)

    return [around(FlowControl, "pause_if_full", pause)]


@mutant
def session_end_not_told() -> Patches:
    """Who hears of its partitions does not hear that one is not its any more."""

    def tell(original: Any, assignment: Assignment, held: Any) -> None:
        if held.is_owned:
            original(assignment, held)

    return [around(Assignment, "_tell", tell)]
