"""Faults in how replicas share what goes together, found where members hand over (9)."""

from partition.replicas import balance as plans
from partition.replicas.balance import SINGLY
from tests.simulation.mutants import around, mutant, wraps


@wraps(plans, "_targets")
def pairs_dealt_singly(original, *given):
    """Partitions of one number go to whoever has room for each."""
    *most, _copartitions = given
    return original(*most, SINGLY)


@mutant
def one_half_granted_first():
    """Each partition is granted once it is free itself, whoever still works on its partner."""
    together = []

    def targets(original, *given):
        *most, _singly = given
        return original(*most, together[-1])

    def next_plan(original, *given):
        *most, copartitions = given
        together.append(copartitions)
        return original(*most, SINGLY)

    return [around(plans, "_targets", targets), around(plans, "next_plan", next_plan)]
