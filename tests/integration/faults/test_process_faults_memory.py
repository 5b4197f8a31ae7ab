"""P04: a process asks for more memory than its group has, and the kernel kills it."""

import signal
import time

import pytest

from tests.acceptance.harness import Run
from tests.acceptance.replicas import SESSION_SECONDS, Replicas
from tests.support.limits import SmallMemory
from tests.support.patience import slack

pytestmark = [pytest.mark.integration, pytest.mark.faults]

TOPOLOGIES = "tests.faults.topologies"

MEGABYTES = 512
SLACK_SECONDS = 10.0
DIES_SECONDS = 60.0


@pytest.mark.parametrize("output", ["lines", "messages"])
def test_out_of_memory_ends_one_process_and_a_new_one_goes_on(trial, output):
    """The other replica takes over; started again, it gets its share."""
    hungry = trial.folder / "hungry-a"
    with (
        SmallMemory(MEGABYTES) as memory,
        Replicas(trial, output, topics={"in-a": 3, "in-b": 2}) as replicas,
    ):
        replicas.start("a", prefix=memory.prefix)
        replicas.begin("b")
        assert memory.kills == 0

        def eat(run: Run) -> None:
            hungry.touch()
            assert run.wait(DIES_SECONDS) == -signal.SIGKILL, run.tail()

        stored = replicas.lose("a", eat)
        assert memory.kills == 1
        since = time.monotonic()
        assert replicas.taken_over(stored, since) < SESSION_SECONDS + slack(SLACK_SECONDS)
        replicas.settle("b")
        hungry.unlink()
        replicas.start("a", prefix=memory.prefix)
        plan = replicas.settle("a", "b")
        assert plan.owners["a"]
        replicas.goes_on()
        replicas.finish()
        assert memory.kills == 1
