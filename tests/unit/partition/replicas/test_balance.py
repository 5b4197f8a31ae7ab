"""Which member each partition is meant for: balanced, with as few moves as can be."""

import random
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


def least_moves(members, partitions, previous):
    """Return how many must move: those without an owner, and what owners have too much.

    So many members as there are partitions left over may have one more than the others, and
    each that has too much saves one move by it.
    """
    share, left_over = divmod(len(partitions), len(members))
    held = Counter(previous.get(each) for each in partitions)
    ownerless = sum(count for owner, count in held.items() if owner not in members)
    too_much = [held[each] - share for each in members if held[each] > share]
    return ownerless + sum(too_much) - min(left_over, len(too_much))


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


@given(situations())
def test_no_more_partitions_move_than_must(situation):
    members, partitions, previous = situation
    if members:
        assert moves(balanced(*situation), previous) == least_moves(members, partitions, previous)


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


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_changes_nothing(situation, rng):
    members, partitions, previous = (list(each) for each in situation)
    rng.shuffle(members)
    rng.shuffle(partitions)
    rng.shuffle(previous)
    shuffled = {each: situation[2][each] for each in previous}
    assert balanced(members, partitions, shuffled) == balanced(*situation)


@given(situations())
def test_what_is_balanced_stays(situation):
    members, partitions, _previous = situation
    owners = balanced(*situation)
    assert balanced(members, partitions, owners) == owners


@given(situations(), st.data())
def test_moves_that_are_done_in_part_go_on_to_the_same_place(situation, data):
    """The leader balances anew at each beat: what is on its way must not be turned round."""
    members, partitions, previous = situation
    owners = balanced(*situation)
    moved = [each for each, owner in owners.items() if previous.get(each) != owner]
    done = data.draw(st.sets(st.sampled_from(moved))) if moved else set()
    stay = {each: owner for each, owner in owners.items() if each not in moved or each in done}
    after = balanced(members, partitions, stay) if members else {}
    assert {each: after[each] for each in stay} == stay


def test_each_topic_is_spread_over_the_members():
    partitions = [Partition(topic, number) for topic in "stuv" for number in range(8)]
    owners = balanced(NAMES[:4], partitions, {})
    counts = Counter((each.topic, owner) for each, owner in owners.items())
    assert set(counts.values()) == {2}


def test_a_new_member_gets_partitions_of_every_topic():
    partitions = [Partition(topic, number) for topic in "stuv" for number in range(8)]
    before = balanced(["a"], partitions, {})
    after = balanced(["a", "b"], partitions, before)
    assert Counter(each.topic for each, owner in after.items() if owner == "b") == dict.fromkeys(
        "stuv", 4
    )


@pytest.mark.parametrize(("count", "members"), [(1_000, 8), (100_000, 500)])
def test_many_partitions_of_many_members_are_balanced(count, members):
    """A killed member's partitions go to the others, and nothing else moves."""
    partitions = [Partition(f"t{number % 7}", number) for number in range(count)]
    random.Random(7).shuffle(partitions)
    names = [f"replica-{number}" for number in range(members)]
    before = balanced(names, partitions, {})
    after = balanced(names[1:], partitions, before)
    lost = sum(owner == names[0] for owner in before.values())
    assert moves(after, before) == lost
    counts = Counter(after.values())
    assert max(counts.values()) - min(counts.values()) <= 1


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


@given(situations(THREE_TOPICS))
def test_pairs_are_spread_evenly_and_so_is_the_rest(situation):
    owners = balanced(*situation, TOGETHER)
    for size in (1, 2):
        units = [unit for unit in TOGETHER.units(situation[1]) if len(unit) == size]
        counts = [sum(owners[unit[0]] == name for unit in units) for name in situation[0]]
        assert not counts or max(counts) - min(counts) <= 1


@given(situations(THREE_TOPICS), st.data())
def test_pairs_that_moved_in_part_go_on_to_the_same_place(situation, data):
    members, partitions, previous = situation
    owners = balanced(*situation, TOGETHER)
    units = [unit for unit in TOGETHER.units(partitions) if members]
    moved = [unit for unit in units if any(previous.get(p) != owners[p] for p in unit)]
    on_the_way = data.draw(st.sets(st.sampled_from(range(len(moved))))) if moved else set()
    interrupted = {each for at in on_the_way for each in moved[at]}
    stay = {each: owner for each, owner in owners.items() if each not in interrupted}
    after = balanced(members, partitions, stay, TOGETHER)
    assert {each: after[each] for each in stay} == stay


def test_members_get_as_many_partitions_of_pairs_and_single_ones_together():
    partitions = [Partition(topic, number) for topic in "rst" for number in range(4)]
    owners = balanced(["a", "b", "c"], partitions, {}, TOGETHER)
    assert sorted(Counter(owners.values()).values()) == [3, 4, 5]


def test_topics_that_go_together_with_other_counts_are_refused():
    with pytest.raises(CountsDiffer, match="'r' with 3, 's' with 2"):
        TOGETHER.check([Partition("r", n) for n in range(3)] + [Partition("s", n) for n in (0, 1)])
    TOGETHER.check([Partition("r", 0), Partition("s", 0), Partition("t", 0), Partition("t", 1)])


# One for all


def test_all_partitions_go_to_who_had_most_of_them():
    partitions = [Partition("t", number) for number in range(3)]
    previous = dict(zip(partitions, ["a", "b", "b"], strict=True))
    assert set(one_for_all(["a", "b"], partitions, previous).values()) == {"b"}


@pytest.mark.parametrize("owner", [None, "gone"])
def test_all_partitions_go_to_the_first_where_no_member_had_any(owner):
    partitions = [Partition("t", number) for number in range(3)]
    previous = dict.fromkeys(partitions, owner) if owner else {}
    assert one_for_all(["b", "a"], partitions, previous) == dict.fromkeys(partitions, "b")


def test_all_partitions_go_to_the_first_of_equals():
    one, two = Partition("t", 0), Partition("t", 1)
    assert set(one_for_all(["b", "a"], [one, two], {one: "a", two: "b"}).values()) == {"b"}


def test_without_members_no_partition_has_an_owner():
    assert one_for_all([], [Partition("t", 0)], {}) == {}
