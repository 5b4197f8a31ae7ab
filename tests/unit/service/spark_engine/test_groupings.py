import pytest

from headrace import Record, Topology, all_tasks, bolt, custom, fields, global_, shuffle
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test
from service.spark_engine.task import TaskDone
from service.spark_engine.task_runner import process
from tests.support.pipeline import KINDS, Seen
from tests.support.spark_tasks import KeepingStager, Tasks, opened, ranged, rows_in

USERS = ["anna", "béla", "chidi", "dao", "eve", "farid", "grace", "hugo"]
COUNT = 40


@bolt
def parse(record: Record) -> dict:
    number = int(record.value or b"")
    return {"n": number, "user": USERS[number % len(USERS)]}


def drawn(kind, grouping, letters, sink):
    seen = Seen()
    topology = Topology("grouped", reliability="exactly-once")
    counted = topology.source("t").then(parse)
    grouped = counted.then(lambda: seen.make(kind), name="g", tasks=3, grouping=grouping)
    grouped.into(sink, name="rows")
    topology.dead_letters.into(letters)
    return topology


def on_executor(kind, grouping):
    tasks, letters = Tasks(), MemoryDeadLetters()
    tasks.send(*(b"%d" % number for number in range(COUNT)))
    topology = drawn(kind, grouping, letters, MemorySink("rows"))
    task = tasks.task([ranged(0, COUNT)], {"rows": KeepingStager()})
    done = process(task, tasks.reader, topology, opened(letters))
    assert isinstance(done, TaskDone), done
    return [(row["n"], row["task"]) for row in rows_in(done.staged["rows"])]


def on_local_engine(kind, grouping):
    topology = drawn(kind, grouping, MemoryDeadLetters(), MemorySink("rows"))
    with topology_test(topology) as kit:
        kit.send(*(b"%d" % number for number in range(COUNT)), topic="t")
        kit.advance(5)
        return [(row["n"], row["task"]) for row in kit.rows]


@pytest.mark.parametrize("kind", [each for each in KINDS if each != "advanced"])
@pytest.mark.parametrize(
    "grouping",
    [shuffle(), global_(), all_tasks(), fields("user"), custom(lambda v, count: v["n"] % count)],
    ids=["shuffle", "global", "all", "fields", "custom"],
)
def test_a_value_goes_to_the_same_tasks_on_both_engines(kind, grouping):
    assert sorted(on_executor(kind, grouping)) == sorted(on_local_engine(kind, grouping))
