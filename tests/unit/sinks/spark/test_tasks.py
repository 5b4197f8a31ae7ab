import gc
import sys
import zipfile
import zipimport
from types import SimpleNamespace

import pytest

from sinks.errors import TaskRaised
from sinks.spark.executors import lighten, run_tasks
from tests.support.fake_spark import Driver
from tests.support.spark import doubled


class Parts(list[bytes]):
    """A resilient dataset: one part per task, each of which is done here."""

    def map(self, function):
        return SimpleNamespace(collect=lambda: list(map(function, self)))


def parallelize(tasks, parts):
    assert len(tasks) == parts
    return Parts(tasks)


@pytest.fixture
def spark():
    return Driver(SimpleNamespace(sparkContext=SimpleNamespace(parallelize=parallelize)))


@pytest.fixture(autouse=True)
def thawed():
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_each_task_is_a_partition_and_results_keep_order(spark):
    assert run_tasks(spark, [b"a", b"b"], doubled, group="g", deadline_seconds=5) == [b"aa", b"bb"]
    assert run_tasks(spark, [b"c"], doubled, group="h") == [b"cc"]
    assert run_tasks(spark, [], doubled, group="none") == []
    assert (spark.groups, spark.deadlines) == (["g", "h"], [5, None])


def test_python_error_of_a_task_is_one_line(spark):
    def fail(task):
        raise ValueError(task.decode())

    text = 'Task failed: Traceback (most recent call last):\n  File "f.py", line 1\nKeyError: 7\n'
    with pytest.raises(TaskRaised, match="job 'g' raised KeyError: 7") as caught:
        run_tasks(spark, [text.encode()], fail, group="g")
    assert caught.value.said == "KeyError: 7"
    with pytest.raises(ValueError, match="java"):
        run_tasks(spark, [b"java.lang.OutOfMemoryError"], fail, group="g")


def test_worker_forgets_archives_and_still_imports(tmp_path, monkeypatch):
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in_an_archive.py", "VALUE = 1")
        file.writestr("in_the_same.py", "VALUE = 2")
    monkeypatch.syspath_prepend(str(archive))
    import in_an_archive  # noqa: PLC0415

    def archives():
        finders = sys.path_importer_cache.values()
        return [each for each in finders if isinstance(each, zipimport.zipimporter)]

    assert archives()
    lighten()
    assert not archives()
    assert gc.get_freeze_count() > 1000
    import in_the_same  # noqa: PLC0415

    assert (in_an_archive.VALUE, in_the_same.VALUE) == (1, 2)
    for name in ("in_an_archive", "in_the_same"):
        del sys.modules[name]


def test_objects_are_frozen_once():
    lighten()
    count = gc.get_freeze_count()
    garbage = [[] for _ in range(1000)]
    lighten()
    assert gc.get_freeze_count() <= count
    del garbage
