"""Who may hold which partition, plan after plan."""

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


def test_what_a_new_member_is_to_get_is_revoked_first():
    members = [member("a", ALL, seen=1), member("b")]
    plan = next_plan(owned(a=ALL), members, ALL, Control())
    assert plan.owners == {ONE: "a", TWO: "a"}
    assert plan.leaving == {THREE: Leaving("a", 2), FOUR: Leaving("a", 2)}


def test_a_process_started_anew_blocks_what_an_older_plan_gave_its_name():
    """It has read nothing yet, and may read the plan before."""
    was = owned(2, {FOUR: Leaving("a", 2)}, a=[ONE, TWO], b=[THREE])
    members = [member("a", process="other"), member("b", [THREE], seen=2)]
    assert next_plan(was, members, ALL, Control()) is None


# What operators ask for


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


# One for all

ONE_HAS_ALL = Copartitions(all_to_one=True)


def test_if_one_has_all_the_leader_gets_all():
    plan = next_plan(None, [member("a"), member("b")], ALL, Control(), ONE_HAS_ALL)
    assert plan.of("a") == set(ALL)


# Surprises


def test_if_the_plan_was_lost_members_keep_what_they_hold_and_numbers_go_on():
    members = [member("a", [FOUR, THREE], seen=17), member("b", [ONE, TWO], seen=16)]
    plan = next_plan(None, members, ALL, Control())
    assert plan.number == 18
    assert plan.owners == {ONE: "b", TWO: "b", THREE: "a", FOUR: "a"}
