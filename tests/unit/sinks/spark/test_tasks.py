"""Tasks on a Spark that runs them here."""

import gc
import sys
import zipfile
import zipimport
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sinks.errors import TaskRaised
from sinks.spark.executors import lighten, run_tasks
from tests.support.spark import doubled


class HereRdd:
    """One part per task, each of which is done here."""

    def __init__(self, tasks: Sequence[bytes], parts: int) -> None:
        assert len(tasks) == parts
        self.tasks = tasks

    def map(self, function: Callable[[bytes], bytes]) -> "HereRdd":
        self.function = function
        return self

    def collect(self) -> list[bytes]:
        return [self.function(task) for task in self.tasks]


class HereSpark:
    """Notes under which name and deadline jobs were run."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, float | None]] = []
        self.session = SimpleNamespace(sparkContext=SimpleNamespace(parallelize=HereRdd))

    def run(
        self, job: Callable[[Any], Any], *, group: str, deadline_seconds: float | None = None
    ) -> Any:
        self.ran.append((group, deadline_seconds))
        return job(self.session)


@pytest.fixture
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_each_task_is_a_partition_and_results_keep_order() -> None:
    spark = HereSpark()
    assert run_tasks(spark, [b"a", b"b"], doubled, group="g", deadline_seconds=5) == [b"aa", b"bb"]
    assert run_tasks(spark, [b"c"], doubled, group="h") == [b"cc"]
    assert spark.ran == [("g", 5), ("h", None)]


def test_no_tasks_are_no_job() -> None:
    spark = HereSpark()
    assert run_tasks(spark, [], doubled, group="g") == []
    assert spark.ran == []


@pytest.mark.usefixtures("thawed")
def test_python_error_of_a_task_is_one_line() -> None:
    def fail(task: bytes) -> bytes:
        raise ValueError(task.decode())

    text = 'Task failed: Traceback (most recent call last):\n  File "f.py", line 1\nKeyError: 7\n'
    with pytest.raises(TaskRaised, match="job 'g' raised KeyError: 7") as caught:
        run_tasks(HereSpark(), [text.encode()], fail, group="g")
    assert caught.value.said == "KeyError: 7"
    with pytest.raises(ValueError, match="java"):
        run_tasks(HereSpark(), [b"java.lang.OutOfMemoryError"], fail, group="g")


@pytest.mark.usefixtures("thawed")
def test_worker_forgets_archives_and_still_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in_an_archive.py", "VALUE = 1")
        file.writestr("in_the_same.py", "VALUE = 2")
    monkeypatch.syspath_prepend(str(archive))
    import in_an_archive  # type: ignore[import-not-found]  # noqa: PLC0415

    def archives() -> list[object]:
        finders = sys.path_importer_cache.values()
        return [each for each in finders if isinstance(each, zipimport.zipimporter)]

    assert archives()
    lighten()
    assert not archives()
    assert gc.get_freeze_count() > 1000
    import in_the_same  # type: ignore[import-not-found]  # noqa: PLC0415

    assert (in_an_archive.VALUE, in_the_same.VALUE) == (1, 2)
    for name in ("in_an_archive", "in_the_same"):
        del sys.modules[name]


@pytest.mark.usefixtures("thawed")
def test_objects_are_frozen_once() -> None:
    lighten()
    count = gc.get_freeze_count()
    garbage: list[object] = [[] for _ in range(1000)]
    lighten()
    assert gc.get_freeze_count() <= count
    del garbage
