"""Faults in what becomes of partitions that are given up, or lost with the session (1, 9)."""

from typing import Any

from acker.acker import Acker
from partition.assigned_partition import Departures, Lost, Revoked
from partition.assignment import Assignment
from tests.simulation.mutants import Patches, around, mutant, put
from topology.workers.key_queue import CallQueue

_KEPT_SECONDS = 900.0


def _trees_live_on() -> Any:
    return put(Acker, "discard", lambda _acker, _chosen: None)


@mutant
def place_freed_by_time() -> Patches:
    """No tree of a partition is thought to live after a quarter of an hour, and they live on."""

    def to_ask(original: Any, departures: Departures, now: float) -> list[int]:
        since = departures.__dict__.setdefault("since", {})
        for held in departures.retired:
            since.setdefault(id(held), (now, held))
        for key, (at, held) in list(since.items()):
            if now - at >= _KEPT_SECONDS:
                departures.forget(held.index)
                del since[key]
        original(departures, now)
        return []

    return [around(Departures, "to_ask", to_ask), _trees_live_on()]


@mutant
def place_freed_at_once() -> Patches:
    """A place is another's as soon as its partition is given up."""

    def to_ask(original: Any, departures: Departures, now: float) -> list[int]:
        for place in original(departures, now):
            departures.forget(place)
        return []

    return [around(Departures, "to_ask", to_ask)]


@mutant
def late_answers_count() -> Patches:
    """What comes late of a partition that is lost counts for whoever has its place."""
    return [put(Acker, "holds", lambda _acker, _chosen: False), _trees_live_on()]


@mutant
def undrained_outcomes_forgotten() -> Patches:
    """A place is free when no tree of it lives, though the acker has not told what came of them."""

    def holds(original: Any, acker: Acker, chosen: Any) -> Any:
        with put(Acker, "_has_outcomes", False):  # noqa: FBT003 - what the property says
            return original(acker, chosen)

    return [around(Acker, "holds", holds)]


@mutant
def loss_after_a_revocation_not_told() -> Patches:
    """Who hears of its partitions does not hear of a loss while one is claimed again."""

    def note(original: Any, assignment: Assignment, held: Any, change: Any) -> None:
        if isinstance(change, Lost) and isinstance(held.told, Revoked) and held.told.error is None:
            held.told = change
            return
        original(assignment, held, change)

    return [around(Assignment, "_note", note)]


@mutant
def suspended_calls_start() -> Patches:
    """What waits of a partition starts while it is claimed again."""
    return [put(CallQueue, "suspend", lambda _queue, _partition: None)]


@mutant
def calls_of_a_lost_partition_start() -> Patches:
    """What waits of a partition that is lost is on its way all the same."""
    return [put(CallQueue, "drop", lambda _queue, _is_gone: [])]
