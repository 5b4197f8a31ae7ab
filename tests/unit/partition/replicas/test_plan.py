from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.errors import CountsDiffer
from partition.records import Partition
from partition.replicas.plan import (
    Control,
    Copartitions,
    Leaving,
    Member,
    Note,
    Plan,
    balanced,
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
