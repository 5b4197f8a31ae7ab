"""Faults in how replicas share what goes together, found where members hand over (9)."""

from typing import Any

from partition.replicas import plan as plans
from partition.replicas.plan import SINGLY, Copartitions
from tests.simulation.mutants import Patches, around, mutant


@mutant
def pairs_dealt_singly() -> Patches:
    """Partitions of one number go to whoever has room for each."""

    def targets(original: Any, *given: Any) -> Any:
        *most, _copartitions = given
        return original(*most, SINGLY)

    return [around(plans, "_targets", targets)]


@mutant
def one_half_granted_first() -> Patches:
    """Each partition is granted once it is free itself, whoever still works on its partner."""
    together: list[Copartitions] = []

    def targets(original: Any, *given: Any) -> Any:
        *most, _singly = given
        return original(*most, together[-1])

    def next_plan(original: Any, *given: Any) -> Any:
        *most, copartitions = given
        together.append(copartitions)
        return original(*most, SINGLY)

    return [around(plans, "_targets", targets), around(plans, "next_plan", next_plan)]
