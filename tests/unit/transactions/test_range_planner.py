from hypothesis import given, settings
from hypothesis import strategies as st

from transactions.groups import RangePlanner, RangePolicy

POLICY = RangePolicy(records=100, seconds=1.0)


def test_plan_waits_for_a_full_group_or_the_time():
    planner = RangePlanner(POLICY)
    assert planner.plan(0.0, {0: (10, 10), 1: (5, 5)}) is None
    assert planner.plan(7.0, {0: (10, 12), 1: (5, 5)}) is None
    assert planner.plan(7.9, {0: (10, 50), 1: (5, 20)}) is None
    assert planner.plan(8.0, {0: (10, 50), 1: (5, 20)}) == {0: 50, 1: 20}
    assert planner.plan(9.0, {0: (50, 51)}) is None, "it waits from now on"
    assert planner.plan(9.1, {0: (50, 100), 1: (20, 70)}) == {0: 100, 1: 70}


def test_wait_counts_behind_groups_in_flight():
    planner = RangePlanner(POLICY)
    assert not planner.look(0.0, {0: (10, 11)})
    assert planner.look(1.0, {0: (10, 11)})
    assert planner.plan(1.0, {0: (10, 11)}) == {0: 11}
    assert planner.look(1.0, {0: (11, 111)})


def test_wait_begins_anew_when_nothing_waits():
    planner = RangePlanner(POLICY)
    planner.look(0.0, {0: (10, 11)})
    planner.look(0.9, {0: (11, 11)})
    assert planner.plan(1.0, {0: (11, 12)}) is None


def test_odd_record_goes_to_each_partition_in_turn():
    planner = RangePlanner(RangePolicy(records=4))
    places = {0: (0, 100), 1: (0, 100), 2: (0, 100)}
    taken = [planner.plan(0.0, places) for _turn in range(4)]
    assert taken == [{0: 2, 1: 1, 2: 1}, {0: 1, 1: 2, 2: 1}, {0: 1, 1: 1, 2: 2}, {0: 2, 1: 1, 2: 1}]


def test_rest_of_a_full_group_waits():
    planner = RangePlanner(POLICY)
    planner.look(0.0, {0: (0, 105)})
    assert planner.plan(5.0, {0: (0, 105)}) == {0: 100}
    assert planner.plan(5.9, {0: (100, 105)}) is None
    assert planner.plan(6.0, {0: (100, 105)}) == {0: 105}


@settings(max_examples=200)
@given(
    records=st.integers(1, 60),
    logs=st.dictionaries(st.integers(0, 12), st.integers(0, 200), max_size=8),
    grows=st.lists(st.integers(0, 12), max_size=30),
)
def test_every_record_is_planned_once_in_fair_parts(records, logs, grows):
    planner = RangePlanner(RangePolicy(records=records, seconds=1.0))
    ends, firsts = dict(logs), dict.fromkeys(logs, 0)
    growing = iter(grows)
    for now in range(sum(logs.values()) + 3 * len(grows) + 2):
        places = {place: (firsts[place], ends[place]) for place in ends}
        found = planner.plan(float(now), places, flush=True)
        waiting = {place: end - first for place, (first, end) in places.items() if end > first}
        if found is None:
            assert not waiting
            break
        counts = {place: end - firsts[place] for place, end in found.items()}
        assert all(1 <= counts[place] <= waiting[place] for place in counts)
        assert sum(counts.values()) == min(records, sum(waiting.values()))
        shares = {place: counts.get(place, 0) for place in waiting}
        cut = [shares[place] for place in waiting if shares[place] < waiting[place]]
        assert not cut or max(cut) - min(cut) <= 1
        assert not cut or max(shares.values()) <= max(cut) + 1
        firsts |= found
        more = next(growing, None)
        if more in ends:
            ends[more] += 3
    assert firsts == ends
