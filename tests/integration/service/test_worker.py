"""A worker process of the spark engine on a real broker, without Spark: bytes in, bytes out."""

import pickle
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from partition.records import Partition, Position
from service.spark_engine.task import (
    RowFileStager,
    Task,
    TaskDone,
    TaskFailed,
    TaskRange,
    read_rows,
)
from tests.support.kafka import KafkaWorld, numbers
from tests.support.patience import seconds
from tests.support.spark_tasks import SETTINGS

pytestmark = pytest.mark.integration

FLOW = """
    from headrace import Record, Reject, Topology, bolt
    from headrace.sinks import KafkaDeadLetters, MemorySink

    @bolt
    async def number(record: Record) -> int:
        value = int(record.value)
        if value % 100 == 7:
            raise Reject("a seven")
        return value

    topology = Topology("worker", reliability="exactly-once")
    topology.source({topic!r}).then(number).into(MemorySink("rows"))
    topology.dead_letters.into(KafkaDeadLetters({letters!r}))
"""
WORKER = """
    import pickle, sys
    from service.spark_engine.task_runner import run_task

    tasks = pickle.load(open(sys.argv[1], "rb"))
    results = [run_task(task) for task in tasks]
    assert "pyspark" not in sys.modules
    pickle.dump(results, open(sys.argv[2], "wb"))
"""


def run(folder: Path, tasks: list[Task]) -> list[TaskDone | TaskFailed]:
    """Run tasks one after the other in a process that knows nothing but them."""
    given, made = folder / "tasks", folder / "results"
    given.write_bytes(pickle.dumps([pickle.dumps(task) for task in tasks]))
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORKER), str(given), str(made)],
        cwd=Path(__file__).parents[3], timeout=seconds(60), check=True,
    )  # fmt: skip
    return [pickle.loads(result) for result in pickle.loads(made.read_bytes())]  # noqa: S301


def test_task_runs_from_bytes_and_sends_letters(kafka, topic, tmp_path):
    """Promise 3; the second task goes on with the client of the first, the third finds no log."""
    world = KafkaWorld(kafka)
    name, letters = topic(2), topic()
    places = [Partition(name, number) for number in (0, 1)]
    for place in places:
        world.append(place, numbers(1000))
    world.delete_before(places[1], 10)
    flow = textwrap.dedent(FLOW).format(topic=name, letters=letters)
    (tmp_path / "worker_flow.py").write_text(flow)
    settings = replace(
        SETTINGS,
        target="worker_flow:topology",
        paths=(str(tmp_path),),
        kafka=world.properties,
        fetch_records=2000,
    )
    stagers = {"rows": RowFileStager(str(tmp_path / "spool"))}
    tasks = [
        Task(settings, tuple(TaskRange(p, Position(a), b) for p, a, b in ranges), stagers)
        for ranges in (
            [(places[0], 0, 600), (places[1], 10, 20)],
            [(places[0], 600, 1000)],
            [(places[1], 5, 20)],
        )
    ]
    first, second, third = run(tmp_path, tasks)
    assert isinstance(first, TaskDone)
    assert isinstance(second, TaskDone)
    rows: dict[str, list[int]] = {}
    for staged in (*first.staged["rows"], *second.staged["rows"]):
        for line, pieces, offsets in read_rows(staged):
            found = [row for piece in pieces for row in piece]
            assert found == offsets.tolist()
            rows.setdefault(line, []).extend(found)
    assert rows == {
        str(places[0]): [n for n in range(1000) if n % 100 != 7],
        str(places[1]): list(range(10, 20)),
    }
    assert [read.count for read in (*first.ranges, *second.ranges)] == [600, 10, 400]
    assert first.counters.dead_lettered + second.counters.dead_lettered == 10
    assert world.log(Partition(letters, 0)).end == 10
    assert isinstance(third, TaskFailed)
    assert (third.partition, third.error_class) == (places[1], "OffsetOutOfRange")
    world.close()
