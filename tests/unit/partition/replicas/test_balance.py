from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partition.errors import CountsDiffer
from partition.records import Partition
from partition.replicas.balance import (
    Control,
    Copartitions,
    Leaving,
    Member,
    Plan,
    balanced,
    leader_of,
    next_plan,
)
from tests.simulation.every_mutant import MUTANTS, kill, replica_mutants
from tests.simulation.handing_over import Broken, Rules, live

ONE, TWO, THREE, FOUR = (Partition("t", number) for number in range(4))
ALL = [ONE, TWO, THREE, FOUR]


def member(name, holds=(), *, seen=0, joined=None, process="p"):
    joined = ord(name) if joined is None else joined
    return Member(name, f"{process}-{name}", joined, seen, frozenset(holds))


def owned(number=1, leaving=None, **names):
    owners = {each: name for name, partitions in names.items() for each in partitions}
    return Plan(number, "a", owners, leaving or {})


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


def test_new_process_blocks_grants_of_older_plans():
    """It has read nothing yet, and may read the plan before."""
    was = owned(2, {FOUR: Leaving("a", 2)}, a=[ONE, TWO], b=[THREE])
    members = [member("a", process="other"), member("b", [THREE], seen=2)]
    assert next_plan(was, members, ALL, Control()) is None


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


ONE_HAS_ALL = Copartitions(all_to_one=True)


def test_if_one_has_all_the_leader_gets_all():
    plan = next_plan(None, [member("a"), member("b")], ALL, Control(), ONE_HAS_ALL)
    assert plan.of("a") == set(ALL)


def test_all_go_to_the_one_with_most_of_them_at_once():
    """Also once its own are leaving: a choice by name would move them twice."""
    members = [member("a", [ONE], seen=1), member("b", ALL[1:], seen=1)]
    plan = next_plan(owned(a=[ONE], b=ALL[1:]), members, ALL, Control(), ONE_HAS_ALL)
    assert plan.owners == {}
    for holds in ([], ALL[1:]), ([], []):
        members = [member(*each, seen=2) for each in zip("ab", holds, strict=True)]
        plan = next_plan(plan, members, ALL, Control(), ONE_HAS_ALL) or plan
    assert plan.of("b") == set(ALL)


def test_members_keep_partitions_when_the_plan_is_lost():
    members = [member("a", [FOUR, THREE], seen=17), member("b", [ONE, TWO], seen=16)]
    plan = next_plan(None, members, ALL, Control())
    assert plan.number == 18
    assert plan.owners == {ONE: "b", TWO: "b", THREE: "a", FOUR: "a"}


NAMES = ["a", "b", "c", "d", "e"]
PARTITIONS = st.sets(
    st.builds(Partition, st.sampled_from(["s", "t"]), st.integers(0, 9)), max_size=20
)


@st.composite
def situations(draw, partitions=PARTITIONS, names=tuple(NAMES)):
    """Return members, partitions, and who had which: gone members and partitions among them."""
    members = draw(st.sets(st.sampled_from(names), max_size=len(names)))
    found = draw(partitions)
    owners = st.sampled_from([*names, "gone"])
    previous = {each: draw(owners) for each in sorted(found) if draw(st.booleans())}
    if draw(st.booleans()):
        previous[Partition("deleted", 0)] = draw(owners)
    return members, found, previous


def moves(owners, previous):
    return sum(previous.get(each) != owner for each, owner in owners.items())


@given(situations())
def test_partitions_are_spread_evenly(situation):
    members, partitions, _previous = situation
    owners = balanced(*situation)
    if not members:
        assert owners == {}
        return
    assert owners.keys() == partitions
    counts = [sum(owner == name for owner in owners.values()) for name in members]
    assert sum(counts) == len(partitions)
    assert max(counts) - min(counts) <= 1


SMALL = st.sets(st.builds(Partition, st.just("t"), st.integers(0, 4)), max_size=5)


@given(situations(SMALL, ("a", "b", "c")))
def test_of_all_balanced_ways_none_moves_fewer(situation):
    """Every way there is, tried."""
    members, partitions, previous = situation
    if not members:
        return
    ordered, fewest = sorted(partitions), len(partitions)
    for way in product(sorted(members), repeat=len(ordered)):
        counts = [way.count(name) for name in members]
        if max(counts) - min(counts) <= 1:
            fewest = min(fewest, moves(dict(zip(ordered, way, strict=True)), previous))
    assert moves(balanced(*situation), previous) == fewest


def test_a_new_member_gets_partitions_of_every_topic():
    partitions = [Partition(topic, number) for topic in "stuv" for number in range(8)]
    before = balanced(["a"], partitions, {})
    after = balanced(["a", "b"], partitions, before)
    assert Counter(each.topic for each, owner in after.items() if owner == "b") == dict.fromkeys(
        "stuv", 4
    )


TOGETHER = Copartitions(lambda topic: None if topic == "t" else 0)
THREE_TOPICS = st.sets(
    st.builds(Partition, st.sampled_from(["r", "s", "t"]), st.integers(0, 9)), max_size=25
)


@given(situations(THREE_TOPICS))
def test_partitions_of_one_number_go_to_one_member(situation):
    owners = balanced(*situation, TOGETHER)
    assert not situation[0] or owners.keys() == situation[1]
    for number in range(10):
        assert len({owners[p] for p in owners if p.topic != "t" and p.number == number}) <= 1


def test_topics_that_go_together_with_other_counts_are_refused():
    with pytest.raises(CountsDiffer, match="'r' with 3, 's' with 2"):
        TOGETHER.check([Partition("r", n) for n in range(3)] + [Partition("s", n) for n in (0, 1)])
    TOGETHER.check([Partition("r", 0), Partition("s", 0), Partition("t", 0), Partition("t", 1)])


SEEDS = 120


def test_two_members_never_work_on_one_partition():
    plans = [len(live(seed).history) for seed in range(SEEDS)]
    assert sum(plans) > 5 * SEEDS  # a world without plans would prove nothing


@given(
    st.integers(0, 2**31).map(lambda half: 2 * half),
    st.lists(st.sampled_from(["s", "t", "u", "alone"]), min_size=2, unique=True),
    st.integers(1, 6),
)
@example(52356560, ["s", "t"], 1)  # there is never a partition, and so no plan
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


def believing(**beliefs):
    """Rules that take what they are told for what each belief makes of it."""

    def rules(plan, members, partitions, control, together):
        told = {"plan": plan, "members": members, "control": control}
        told |= {name: made(**told) for name, made in beliefs.items()}
        return next_plan(told["plan"], told["members"], partitions, told["control"], together)

    return Rules(rules)


def with_ghosts(plan, members, **_):
    named = {each.name for each in members}
    gone = {*plan.owners.values()} - named if plan else ()
    return [*members, *(Member(name, "gone", 10**6, 0, frozenset()) for name in sorted(gone))]


BROKEN = {
    "forgets what was seen": believing(
        members=lambda plan, members, **_: [
            replace(each, seen=plan.number if plan else 0) for each in members
        ]
    ),
    "ignores what is held": believing(
        members=lambda members, **_: [replace(each, holds=frozenset()) for each in members]
    ),
    "forgets who is leaving": believing(plan=lambda plan, **_: plan and replace(plan, leaving={})),
    "forgets who owns": believing(plan=lambda plan, **_: plan and replace(plan, owners={})),
    "waits for who is gone": believing(members=with_ghosts),
    "hears of no drain": believing(control=lambda control, **_: replace(control, drained={})),
    "rebalances for ever": believing(
        control=lambda plan, control, **_: replace(
            control, rebalance=1 + (plan.rebalanced if plan else 0)
        )
    ),
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
