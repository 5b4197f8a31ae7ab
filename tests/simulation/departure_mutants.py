"""Faults in what becomes of partitions that are given up, or lost with the session (1, 9)."""

from typing import Any

from acker.acker import Acker
from partition.assignment import Assignment
from partition.departures import Departures
from tests.simulation.mutants import Patches, around, mutant, put
from topology.running.lane import Lane

_KEPT_SECONDS = 900.0


def _trees_live_on() -> Any:
    return put(Acker, "discard", lambda _acker, _chosen: None)


@mutant
def place_freed_by_time() -> Patches:
    """No tree of a partition is thought to live after a quarter of an hour, and they live on."""

    def forget(original: Any, departures: Departures, now: float) -> None:
        since = departures.__dict__.setdefault("since", {})
        for held in departures._retired:
            since.setdefault(id(held), (now, held))
        old = {held.place for at, held in since.values() if now - at >= _KEPT_SECONDS}
        departures._holds = lambda place: place not in old
        original(departures, now)
        for key in [key for key, (_at, held) in since.items() if held not in departures._retired]:
            del since[key]

    return [around(Departures, "forget", forget), _trees_live_on()]


@mutant
def place_freed_at_once() -> Patches:
    """A place is another's as soon as its partition is given up."""

    def forget(original: Any, departures: Departures, now: float) -> None:
        departures._holds = lambda _place: False
        original(departures, now)

    return [around(Departures, "forget", forget)]


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

    def tell(original: Any, assignment: Assignment, held: Any) -> None:
        held.is_lost = held.is_lost or not held.is_told
        original(assignment, held)
        held.is_lost = held.loss is not None

    return [around(Assignment, "_tell", tell)]


@mutant
def suspended_calls_start() -> Patches:
    """What waits of a partition starts while it is claimed again."""
    return [put(Lane, "suspend", lambda _lane, _partition: None)]


@mutant
def calls_of_a_lost_partition_start() -> Patches:
    """What waits of a partition that is lost is on its way all the same."""
    return [put(Lane, "drop", lambda _lane, _is_gone: [])]
