import re

from hypothesis import given
from hypothesis import strategies as st

from headrace import Topology
from headrace.sinks import MemorySink
from service.spark_engine.cluster import deal
from service.spark_engine.planner import Rates
from tests.support.spark_tasks import ranged

SIZES = st.lists(st.integers(0, 1000), max_size=30)


def sizes_in(tasks):
    return [sum(each.end - each.position.offset for each in task) for task in tasks]


@given(SIZES, st.integers(0, 8))
def test_ranges_are_dealt_out_in_tasks_of_about_equal_size(sizes, slots):
    ranges = [ranged(0, size, number) for number, size in enumerate(sizes)]
    tasks = deal(ranges, slots)
    dealt = sorted(each.partition.number for task in tasks for each in task)
    assert dealt == list(range(len(sizes)))
    assert len(tasks) == max(1, min(slots, len(sizes)))
    if sizes:
        fair = sum(sizes) / len(tasks)
        assert max(sizes_in(tasks)) <= fair + max(sizes)


def topology_of(*sources):
    topology = Topology("rates", reliability="exactly-once")
    for topic, rate in sources:
        topology.source(topic, records_per_second=rate).into(MemorySink())
    return topology


def test_a_limit_is_shared_by_all_partitions_of_a_source():
    rates = Rates(topology_of((re.compile("t."), 10.0)).source_of, 1.0)
    logs = {0: (0, 100), 1: (0, 2), 2: (0, 100)}
    topics = {0: "ta", 1: "tb", 2: "ta"}
    assert rates.allowed(0.0, logs, topics) == {0: (0, 4), 1: (0, 2), 2: (0, 4)}


def test_partitions_take_turns_where_a_rate_allows_one_record():
    rates = Rates(topology_of(("t", 1.0)).source_of, 0.0)
    logs, found = {0: (0, 100), 1: (0, 100)}, []
    for second in range(4):
        allowed = rates.allowed(float(second), logs, {0: "t", 1: "t"})
        found.append([end for _, end in allowed.values()])
        rates.take("t", 1)
    assert found == [[1, 0], [0, 1], [1, 0], [0, 1]]


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=30), st.floats(0.5, 100.0))
def test_rate_is_never_exceeded_by_more_than_its_savings(pauses, rate):
    rates = Rates(topology_of(("t", rate)).source_of, 1.0)
    now, first, passed = 0.0, 0, 0
    for pause in pauses:
        now += pause
        start, end = rates.allowed(now, {0: (first, first + 10_000)}, {0: "t"})[0]
        rates.take("t", end - start)
        first, passed = end, passed + end - start
    assert passed <= rate * now + 2 * max(1.0, rate) + 1
