"""Who may hold which partition, plan after plan."""

import pytest

from partition.records import Partition
from partition.replicas.plan import (
    Control,
    Copartitions,
    Leaving,
    Member,
    Note,
    Plan,
    leader_of,
    next_plan,
)

ONE, TWO, THREE, FOUR = (Partition("t", number) for number in range(4))
ALL = [ONE, TWO, THREE, FOUR]
NOTE = Note("operator", "a test", 0)


def member(name, holds=(), *, seen=0, joined=None, process="p"):
    joined = ord(name) if joined is None else joined
    return Member(name, f"{process}-{name}", joined, seen, frozenset(holds))


def drained(*names):
    return Control(drained=dict.fromkeys(names, NOTE))


def owned(number=1, leaving=None, rebalanced=0, **names):
    owners = {each: name for name, partitions in names.items() for each in partitions}
    return Plan(number, "a", owners, leaving or {}, rebalanced)


def test_who_joined_first_leads():
    assert leader_of([member("a", joined=5), member("b", joined=3)]).name == "b"
    assert leader_of([]) is None


def test_without_members_there_is_no_plan():
    assert next_plan(None, [], ALL, Control()) is None


def test_a_plan_knows_what_a_member_may_hold():
    plan = owned(a=[ONE, TWO], b=[THREE])
    assert plan.of("a") == {ONE, TWO}
    assert plan.of("c") == frozenset()


def test_the_first_plan_grants_every_partition_at_once():
    plan = next_plan(None, [member("a"), member("b")], ALL, Control())
    assert (plan.number, plan.leader, plan.leaving) == (1, "a", {})
    assert plan.owners.keys() == set(ALL)
    assert len(plan.of("a")) == len(plan.of("b")) == 2


def test_a_plan_that_changes_nothing_is_not_made():
    members = [member("b", [THREE, FOUR], seen=1), member("a", [ONE, TWO], seen=1)]
    assert next_plan(owned(a=[ONE, TWO], b=[THREE, FOUR]), members, ALL, Control()) is None


def test_what_a_new_member_is_to_get_is_revoked_first():
    members = [member("a", ALL, seen=1), member("b")]
    plan = next_plan(owned(a=ALL), members, ALL, Control())
    assert plan.owners == {ONE: "a", TWO: "a"}
    assert plan.leaving == {THREE: Leaving("a", 2), FOUR: Leaving("a", 2)}


@pytest.mark.parametrize(
    ("holds", "seen", "granted"),
    [
        (ALL, 1, []),  # it has not read that it must release
        (ALL, 2, []),  # it drains
        ([ONE, TWO], 1, []),  # it may open yet what the plan before gave it
        ([ONE, TWO, FOUR], 2, [THREE]),  # it released one of them
        ([ONE, TWO], 2, [THREE, FOUR]),
        ([ONE, TWO], 3, [THREE, FOUR]),  # it skipped a plan
    ],
)
def test_what_is_revoked_is_granted_when_it_was_seen_and_released(holds, seen, granted):
    leaving = {THREE: Leaving("a", 2), FOUR: Leaving("a", 2)}
    was = owned(2, leaving, a=[ONE, TWO])
    plan = next_plan(was, [member("a", holds, seen=seen), member("b", seen=2)], ALL, Control())
    assert (plan or was).of("b") == set(granted)
    assert (plan or was).leaving.keys() == {THREE, FOUR} - set(granted)
    assert (plan or was).of("a") == {ONE, TWO}


def test_a_plan_that_revokes_more_leaves_what_was_leaving_its_number():
    was = owned(2, {FOUR: Leaving("a", 2)}, a=[ONE, TWO, THREE])
    members = [member("a", ALL, seen=1), member("b"), member("c")]
    plan = next_plan(was, members, ALL, Control())
    assert plan.number == 3
    assert plan.leaving[FOUR] == Leaving("a", 2)
    assert plan.leaving[THREE] == Leaving("a", 3)


def test_what_a_gone_member_had_is_granted_at_once():
    was = owned(2, {FOUR: Leaving("a", 2)}, a=[TWO, THREE], b=[ONE])
    plan = next_plan(was, [member("b", [ONE], seen=2)], ALL, Control())
    assert plan.of("b") == set(ALL)
    assert plan.leaving == {}


def test_a_process_started_anew_under_a_name_keeps_the_names_partitions():
    was = owned(1, a=[ONE, TWO], b=[THREE, FOUR])
    anew = member("a", joined=10_000, process="other")
    assert next_plan(was, [member("b", [THREE, FOUR], seen=1), anew], ALL, Control()) is None


def test_a_process_started_anew_blocks_what_an_older_plan_gave_its_name():
    """It has read nothing yet, and may read the plan before."""
    was = owned(2, {FOUR: Leaving("a", 2)}, a=[ONE, TWO], b=[THREE])
    members = [member("a", process="other"), member("b", [THREE], seen=2)]
    assert next_plan(was, members, ALL, Control()) is None


def test_a_partition_that_is_to_go_back_is_released_before_it_is_granted_again():
    was = owned(2, {FOUR: Leaving("a", 2)}, a=[ONE, TWO, THREE])
    assert next_plan(was, [member("a", ALL, seen=2)], ALL, Control()) is None
    plan = next_plan(was, [member("a", ALL[:3], seen=2)], ALL, Control())
    assert plan.of("a") == set(ALL)


def test_new_partitions_are_granted_at_once_and_move_none():
    members = [member("a", [ONE], seen=1), member("b", [TWO], seen=1)]
    plan = next_plan(owned(a=[ONE], b=[TWO]), members, ALL, Control())
    assert plan.leaving == {}
    assert plan.of("a") >= {ONE}
    assert plan.of("b") >= {TWO}
    assert len(plan.of("a")) == len(plan.of("b")) == 2


def test_a_partition_that_is_no_more_leaves_and_is_forgotten():
    was = owned(a=[ONE, TWO])
    plan = next_plan(was, [member("a", [ONE, TWO], seen=1)], [ONE], Control())
    assert plan.owners == {ONE: "a"}
    assert plan.leaving == {TWO: Leaving("a", 2)}
    after = next_plan(plan, [member("a", [ONE], seen=2)], [ONE], Control())
    assert after.leaving == {}


# What operators ask for


def test_a_drained_member_gives_all_to_the_others():
    members = [member("a", [ONE, TWO], seen=1), member("b", [THREE, FOUR], seen=1)]
    was = owned(a=[ONE, TWO], b=[THREE, FOUR])
    plan = next_plan(was, members, ALL, drained("a"))
    assert plan.of("a") == frozenset()
    assert plan.leaving == {ONE: Leaving("a", 2), TWO: Leaving("a", 2)}


def test_if_all_are_drained_all_is_revoked_and_nothing_granted():
    members = [member("a", [ONE], seen=1)]
    plan = next_plan(owned(a=[ONE]), members, ALL, drained("a"))
    assert (plan.owners, plan.leaving) == ({}, {ONE: Leaving("a", 2)})
    after = next_plan(plan, [member("a", seen=2)], ALL, drained("a"))
    assert (after.owners, after.leaving) == ({}, {})


def test_a_rebalance_is_heeded_once():
    """The counts are even, but each topic is with one member: it is spread anew."""
    partitions = [Partition(topic, number) for topic in "st" for number in range(2)]
    was = owned(a=partitions[:2], b=partitions[2:])
    members = [member("a", partitions[:2], seen=1), member("b", partitions[2:], seen=1)]
    plan = next_plan(was, members, partitions, Control(rebalance=1))
    assert plan.rebalanced == 1
    assert plan.leaving == {partitions[1]: Leaving("a", 2), partitions[2]: Leaving("b", 2)}
    members = [member("a", partitions[:1], seen=2), member("b", partitions[3:], seen=2)]
    after = next_plan(plan, members, partitions, Control(rebalance=1))
    assert after.of("a") == {partitions[0], partitions[2]}
    assert after.of("b") == {partitions[1], partitions[3]}


# What goes together

ORDERS, PAYMENTS = ([Partition(topic, n) for n in range(2)] for topic in ("orders", "payments"))
TOGETHER = Copartitions(lambda _topic: 0)


def test_what_goes_together_is_granted_once_all_of_it_is_released():
    everything = [*ORDERS, *PAYMENTS]
    plan = next_plan(None, [member("a")], everything, Control(), TOGETHER)
    members = [member("a", everything, seen=1), member("b")]
    plan = next_plan(plan, members, everything, Control(), TOGETHER)
    assert plan.of("a") == {ORDERS[0], PAYMENTS[0]}
    assert plan.leaving.keys() == {ORDERS[1], PAYMENTS[1]}
    members = [member("a", [ORDERS[0], PAYMENTS[0], PAYMENTS[1]], seen=2), member("b", seen=2)]
    plan = next_plan(plan, members, everything, Control(), TOGETHER)
    assert plan.of("b") == frozenset()
    assert plan.leaving.keys() == {PAYMENTS[1]}
    members = [member("a", [ORDERS[0], PAYMENTS[0]], seen=3), member("b", seen=3)]
    plan = next_plan(plan, members, everything, Control(), TOGETHER)
    assert plan.of("b") == {ORDERS[1], PAYMENTS[1]}


def test_a_plan_that_parts_what_goes_together_is_mended_step_by_step():
    """As a topology without the join has left it; nobody gets a half while another has one."""
    members = [member("a", [ORDERS[0]], seen=1), member("b", [PAYMENTS[0]], seen=1)]
    halves = [ORDERS[0], PAYMENTS[0]]
    plan = next_plan(owned(a=halves[:1], b=halves[1:]), members, halves, Control(), TOGETHER)
    assert (plan.owners, plan.leaving.keys()) == ({}, set(halves))
    members = [member("a", seen=2), member("b", [PAYMENTS[0]], seen=2)]
    plan = next_plan(plan, members, halves, Control(), TOGETHER)
    assert (plan.owners, plan.leaving.keys()) == ({}, {PAYMENTS[0]})
    members = [member("a", seen=3), member("b", seen=3)]
    plan = next_plan(plan, members, halves, Control(), TOGETHER)
    assert len({plan.owners[each] for each in halves}) == 1


def test_of_a_member_that_dies_all_that_goes_together_moves_at_once():
    plan = next_plan(
        owned(a=ORDERS, b=PAYMENTS),
        [member("b", PAYMENTS, seen=1)],
        [*ORDERS, *PAYMENTS],
        Control(),
        TOGETHER,
    )
    assert plan.of("b") == {*ORDERS, *PAYMENTS}


def test_a_partition_that_is_new_goes_to_whom_its_partner_is():
    members = [member("a", [ORDERS[0]], seen=1), member("b", [ORDERS[1]], seen=1)]
    was = owned(a=ORDERS[:1], b=ORDERS[1:])
    plan = next_plan(was, members, [*ORDERS, *PAYMENTS], Control(), TOGETHER)
    assert plan.of("a") == {ORDERS[0], PAYMENTS[0]}
    assert plan.of("b") == {ORDERS[1], PAYMENTS[1]}


# One for all

ONE_HAS_ALL = Copartitions(all_to_one=True)


def test_if_one_has_all_the_leader_gets_all():
    plan = next_plan(None, [member("a"), member("b")], ALL, Control(), ONE_HAS_ALL)
    assert plan.of("a") == set(ALL)


def test_who_has_all_goes_on_though_another_leads():
    members = [member("a"), member("b", ALL, seen=1)]
    assert next_plan(owned(b=ALL), members, ALL, Control(), ONE_HAS_ALL) is None


def test_who_stands_by_gets_all_once_the_other_is_gone():
    plan = next_plan(owned(a=ALL), [member("b")], ALL, Control(), ONE_HAS_ALL)
    assert plan.of("b") == set(ALL)


# Surprises


def test_if_the_plan_was_lost_members_keep_what_they_hold_and_numbers_go_on():
    members = [member("a", [FOUR, THREE], seen=17), member("b", [ONE, TWO], seen=16)]
    plan = next_plan(None, members, ALL, Control())
    assert plan.number == 18
    assert plan.owners == {ONE: "b", TWO: "b", THREE: "a", FOUR: "a"}


def test_what_two_say_to_hold_is_granted_when_the_other_has_released_it():
    members = [member("a", [ONE]), member("b", [ONE])]
    plan = next_plan(None, members, [ONE], Control())
    assert (plan.owners, plan.leaving) == ({}, {ONE: Leaving("b", 1)})
    members = [member("a", [ONE], seen=1), member("b", seen=1)]
    assert next_plan(plan, members, [ONE], Control()).owners == {ONE: "a"}


def test_who_was_away_and_still_holds_what_another_got_does_not_get_it_back():
    was = owned(3, b=[ONE])
    members = [member("a", [ONE], seen=2), member("b", seen=3)]
    assert next_plan(was, members, [ONE], Control()) is None
