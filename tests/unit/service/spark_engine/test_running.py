import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from partition.records import Partition, Position
from partition.recovery import Loss
from service.pipeline.dead_letter_sender import DeadLetterSender
from service.spark_engine import task, task_runner
from sinks.memory import MemoryDeadLetters
from sinks.storage import Storage
from tests.support.faulty_kafka import FaultyLog
from tests.support.spark_tasks import SETTINGS, CountingFetcher, ranged
from topology.errors import SinkFailed
from topology.sink import SinkContext

MODULE = """
    from headrace import Record, Reject, Topology, bolt, reference
    from headrace.sinks import MemorySink
    from worker_letters import letters

    names = reference("names.parquet", key="id", value="name")

    @bolt
    def named(record: Record) -> str:
        value = (record.value or b"").decode()
        if value == "bad":
            raise Reject("bad")
        return names.get(value, value)

    topology = Topology("worker", reliability="exactly-once")
    topology.uses(names)
    topology.source("t").then(named).into(MemorySink("rows"))
    topology.dead_letters.into(letters)
"""
LETTERS = """
    from unittest.mock import Mock
    from headrace.sinks import MemoryDeadLetters

    letters = MemoryDeadLetters()
    letters.open, letters.close = Mock(), Mock()
"""


class Worker:
    def __init__(self, folder, log, fetchers):
        self.folder = folder
        self.log = log
        self.fetchers = fetchers
        self.settings = replace(SETTINGS, target="worker_flow:topology", paths=(str(folder),))
        self.use({"1": "one", "2": "two"})

    def use(self, names):
        table = pa.table({"id": list(names), "name": list(names.values())})
        path = self.folder / f"{len(list(self.folder.iterdir()))}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        self.settings = replace(self.settings, references={"names": str(path)})

    def send(self, *values):
        for value in values:
            self.log.append(Partition("t", 0), value)

    def run(self, *ranges):
        stagers = {"rows": task.RowFileStager(str(self.folder / "spool"))}
        encoded = task.encode(task.Task(self.settings, ranges, stagers))
        return task.decode(task_runner.run_task(encoded))

    def rows(self, *ranges):
        done = self.run(*ranges)
        assert isinstance(done, task.TaskDone), done
        return [
            row
            for each in done.staged["rows"]
            for _line, pieces, _offsets in task.read_rows(each)
            for piece in pieces
            for row in piece
        ]

    @property
    def letters(self):
        return sys.modules["worker_letters"].letters


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "worker_flow.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "worker_letters.py").write_text(textwrap.dedent(LETTERS))
    log, fetchers = FaultyLog({"t": 1}), []

    def fetcher(properties):
        fetchers.append(CountingFetcher(log))
        return fetchers[-1]

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(task_runner, "_workers", {})
    monkeypatch.setattr(task_runner, "KafkaFetcher", fetcher)
    monkeypatch.setattr("service.observability.logs.configure", lambda *_how: None)
    yield Worker(tmp_path, log, fetchers)
    for name in ("worker_flow", "worker_letters"):
        sys.modules.pop(name, None)


def test_the_client_and_the_tables_stay_for_the_next_task(worker):
    worker.send(b"1", b"2", b"1")
    first = Path(worker.settings.references["names"])
    assert worker.rows(ranged(0, 1)) == ["one"]
    first.unlink()
    assert worker.rows(ranged(1, 2)) == ["two"]
    assert [each.added for each in worker.fetchers] == [[Partition("t", 0)]]
    worker.use({"1": "uno"})
    assert worker.rows(ranged(2, 3)) == ["uno"]


def test_a_table_that_is_not_there_may_be_there_the_next_time(worker):
    worker.send(b"1")
    path = Path(worker.settings.references["names"])
    aside = path.rename(worker.folder / "aside")
    with pytest.raises(task_runner.TableUnavailable, match="arrow"):
        worker.run(ranged(0, 1))
    aside.rename(path)
    assert worker.rows(ranged(0, 1)) == ["one"]


def test_a_task_that_fails_lets_go_of_the_clients(worker):
    worker.send(b"1", b"bad", b"2")
    assert worker.rows(ranged(0, 2)) == ["one"]
    failed = worker.run(ranged(2, 3), ranged(0, 1, 7))
    assert isinstance(failed, task.TaskFailed)
    assert worker.letters.close.call_count == 1
    assert worker.rows(ranged(2, 3)) == ["two"]
    assert len(worker.fetchers) == 2


def test_the_place_for_letters_is_opened_with_the_first_letter(worker):
    """Spark tries a task again while it is away."""
    worker.send(b"1", b"bad", b"bad")
    worker.rows(ranged(0, 1))
    assert not worker.letters.open.called
    worker.letters.open.side_effect = SinkFailed("no broker")
    with pytest.raises(task_runner.DeadLettersUnavailable, match="no broker"):
        worker.run(ranged(1, 2))
    worker.letters.open.reset_mock(side_effect=True)
    for first in (1, 2):
        assert worker.rows(ranged(first, first + 1)) == []
    assert (worker.letters.open.call_count, len(worker.letters.letters)) == (1, 2)


def test_what_is_said_of_a_failed_tasks_letters_is_not_taken_for_the_next_tasks():
    """Promise 3."""
    slow = MemoryDeadLetters()  # it tells of the first letter only, after it was closed
    poll, slow.close = slow.poll, Mock()
    slow.poll = lambda: poll()[:1] if slow.close.called else []
    letters = task_runner.LazyDeadLetters(slow, SinkContext("p", "s", {}, Storage(""), None))
    loss = Loss(Partition("t", 0), "expired", Position(0), Position(1), 1, "")
    failed = DeadLetterSender(letters).send_notice(loss)
    letters.close()
    sender = DeadLetterSender(letters)
    notice = sender.send_notice(loss)
    sender.poll(0.0)
    assert (failed.done(), notice.done(), sender.pending) == (False, False, 1)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_module:topology", "no_such_module"),
        ("worker_flow:named", "worker_flow:named"),
        ("worker_broken:topology", "settings.json"),
    ],
)
def test_a_topology_that_cannot_be_loaded_ends_the_run(worker, target, said):
    (worker.folder / "worker_broken.py").write_text('open("/nowhere/settings.json")')
    worker.settings = replace(worker.settings, target=target)
    failed = worker.run(ranged(0, 1))
    assert isinstance(failed, task.TaskFailed)
    assert failed.error_class == "NoTopology"
    assert said in failed.error


def test_a_fork_keeps_nothing_of_its_parents(monkeypatch):
    monkeypatch.setattr(task_runner, "_workers", {})
    monkeypatch.setattr("service.observability.logs.configure", lambda *_how: None)
    ours = task_runner.this_worker(SETTINGS)
    assert task_runner.this_worker(SETTINGS) is ours
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert task_runner.this_worker(SETTINGS) is not ours
