import threading

import pytest

from sinks.errors import TaskRaised
from sinks.spark.executors import run_tasks
from tests.support import spark as task_functions
from tests.support.patience import seconds, until
from tests.support.spark import healing

pytestmark = pytest.mark.integration


def test_two_jobs_run_at_once(spark, tmp_path):
    marks = [str(tmp_path / name) for name in ("one", "other")]
    ended: list[bytes] = []

    def run(task: str) -> None:
        ended.extend(run_tasks(spark, [task.encode()], task_functions.meeting, group=task[-3:]))

    threads = [
        threading.Thread(target=run, args=("\n".join(each),)) for each in (marks, marks[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds(60))
    assert len(ended) == 2


def test_a_task_whose_worker_is_killed_is_done_again(spark, tmp_path):
    """Promise 15: on one machine, too, a lost worker costs its task's time and nothing else."""
    tasks = [b"before", str(tmp_path / "mark").encode(), b"after"]
    with healing("an executor or a Python worker is lost", spark) as before:
        found = run_tasks(spark, tasks, task_functions.killed_once, group="killed")
    assert found == [b"before", b"again", b"after"]
    assert spark.restarts == before.restarts


def test_what_a_task_raises_is_told_in_one_line(spark):
    with pytest.raises(TaskRaised, match=r"'raising' raised ValueError: no such thing: 7$"):
        run_tasks(spark, [b"7"], task_functions.raising, group="raising")


def test_a_job_that_is_cancelled_ends_and_others_go_on(spark, tmp_path):
    mark, caught = tmp_path / "cancelled", list[Exception]()

    def hang() -> None:
        never = f"{mark}\n{tmp_path / 'never'}".encode()
        try:
            run_tasks(spark, [never], task_functions.meeting, group="hang")
        except Exception as error:  # noqa: BLE001 - it is looked at below
            caught.append(error)

    with healing("an executor or a Python worker is lost", spark):  # nothing is logged, that is
        thread = threading.Thread(target=hang)
        thread.start()
        until("it runs", mark.exists)
        spark.cancel("hang")
        thread.join(seconds(30))
        assert "cancelled" in str(caught[0])
    assert run_tasks(spark, [b"a"], task_functions.doubled, group="hang") == [b"aa"]
