"""Members that follow plans never work on what goes together, whatever happens to whom."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partition.replicas.plan import Member, next_plan
from tests.simulation.every_mutant import MUTANTS, kill, replica_mutants
from tests.simulation.handing_over import Broken, Rules, live

SEEDS = 120


def test_two_members_never_work_on_one_partition():
    plans = [len(live(seed).history) for seed in range(SEEDS)]
    assert sum(plans) > 5 * SEEDS  # a world without plans would prove nothing


@given(
    st.integers(0, 2**31).map(lambda half: 2 * half),
    st.lists(st.sampled_from(["s", "t", "u", "alone"]), min_size=2, unique=True),
    st.integers(1, 6),
)
@settings(max_examples=40, deadline=None)
def test_what_goes_together_is_at_one_member_at_every_moment(seed, topics, numbers):
    live(seed, topics=topics, numbers=numbers)


@pytest.mark.parametrize(
    "name", [name for name, make in MUTANTS.items() if make.__module__ == replica_mutants.__name__]
)
def test_a_fault_in_what_goes_together_is_found(name):
    killed = kill(name)
    assert killed.how is not None
    assert not killed.has_crashed


def forgets_what_was_seen(plan, members, partitions, control, together):
    number = 0 if plan is None else plan.number
    members = [replace(each, seen=number) for each in members]
    return next_plan(plan, members, partitions, control, together)


def ignores_what_is_held(plan, members, partitions, control, together):
    members = [replace(each, holds=frozenset()) for each in members]
    return next_plan(plan, members, partitions, control, together)


def forgets_who_is_leaving(plan, members, partitions, control, together):
    return next_plan(plan and replace(plan, leaving={}), members, partitions, control, together)


def forgets_who_owns(plan, members, partitions, control, together):
    return next_plan(plan and replace(plan, owners={}), members, partitions, control, together)


def waits_for_who_is_gone(plan, members, partitions, control, together):
    named = {each.name for each in members}
    gone = {*plan.owners.values()} - named if plan else ()
    ghosts = [Member(name, "gone", 10**6, 0, frozenset()) for name in sorted(gone)]
    return next_plan(plan, [*members, *ghosts], partitions, control, together)


def hears_of_no_drain(plan, members, partitions, control, together):
    return next_plan(plan, members, partitions, replace(control, drained={}), together)


def rebalances_for_ever(plan, members, partitions, control, together):
    number = 1 + (plan.rebalanced if plan else 0)
    return next_plan(plan, members, partitions, replace(control, rebalance=number), together)


BROKEN = {
    "forgets what was seen": Rules(forgets_what_was_seen),
    "ignores what is held": Rules(ignores_what_is_held),
    "forgets who is leaving": Rules(forgets_who_is_leaving),
    "forgets who owns": Rules(forgets_who_owns),
    "waits for who is gone": Rules(waits_for_who_is_gone),
    "hears of no drain": Rules(hears_of_no_drain),
    "rebalances for ever": Rules(rebalances_for_ever),
    "writes over other plans": Rules(sees_other_plans=False),
    "overlooks who registers": Rules(sees_registrations=False),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_noticed(name):
    def every_seed():
        for seed in range(10 * SEEDS):
            live(seed, BROKEN[name])

    with pytest.raises(Broken):
        every_seed()
