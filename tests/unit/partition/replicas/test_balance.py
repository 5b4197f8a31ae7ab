"""Which member each partition is meant for: balanced, with as few moves as can be."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.errors import CountsDiffer
from partition.records import Partition
from partition.replicas.plan import Copartitions, balanced, one_for_all

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
def test_every_partition_has_one_member_and_counts_differ_by_one_at_most(situation):
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


# What goes together

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


# One for all


def test_all_partitions_go_to_who_had_most_of_them():
    partitions = [Partition("t", number) for number in range(3)]
    previous = dict(zip(partitions, ["a", "b", "b"], strict=True))
    assert set(one_for_all(["a", "b"], partitions, previous).values()) == {"b"}


def test_without_members_no_partition_has_an_owner():
    assert one_for_all([], [Partition("t", 0)], {}) == {}
