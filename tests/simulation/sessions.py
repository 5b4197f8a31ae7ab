"""In the middle of what a session ended: the situations of a process that loses its claims."""

from typing import TYPE_CHECKING

from partition.errors import KafkaError

if TYPE_CHECKING:
    from partition.assigned_partition import AssignedPartition
    from tests.simulation.life import Life


def session_ended(life: "Life") -> None:
    """Tell what a process was doing when it hears that its session has ended."""
    seen = life.world.seen
    if life.store.move_has_landed:
        seen("session_ended_after_a_move_had_landed")
    for held in life.reader.assignment:
        if held.error is not None:
            if _owes(held):
                seen("session_ended_with_a_halted_frontier_not_stored")
        elif held.chain is None:
            continue
        elif held.manager is None:
            seen("session_ended_while_a_partition_opened")
        elif not held.is_owned:
            seen("session_ended_before_its_claims_ended")
        elif held.manager.waiting:
            seen("session_ended_in_a_recovery_with_records_waiting")


def urgency(life: "Life") -> int:
    """How rare what a process is in the middle of is, and what a session's end may upset."""
    if life.store.operation == "move":
        return 3
    if any(_owes(held) for held in life.reader.assignment):
        return 2
    return 1 if is_reclaiming(life) or any(_is_mended(h) for h in life.reader.assignment) else 0


def is_reclaiming(life: "Life") -> bool:
    """Whether a process takes up again what was its own in an earlier session."""
    return any(
        held.manager is not None and not held.is_owned and held.chain is not None
        for held in life.reader.assignment
    )


def _owes(held: "AssignedPartition") -> bool:
    """Whether the source halted a partition of which not all is stored yet."""
    manager = held.manager
    if manager is None or not isinstance(held.error, KafkaError):
        return False
    return manager.last_completed_offset > manager.committed


def _is_mended(held: "AssignedPartition") -> bool:
    return held.chain is not None and (held.manager is None or held.manager.waiting)
