"""Topologies for faults of the process; tests/acceptance/trial.py runs them.

In `forking`, what happens to a record that is trouble hangs on its partition.
"""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

from headrace import Record, Topology, bolt
from headrace.sinks import KafkaSink
from tests.acceptance.traces import TOPIC, TROUBLE, Lines, text

BATCH_SECONDS = 0.05


def answer() -> int:
    """What a child does."""
    return 42


def _fork() -> None:
    if os.fork() == 0:
        return  # the mistake that would make two owners of one


def _process() -> None:
    child = multiprocessing.get_context("fork").Process(target=answer)
    child.start()
    child.join()


def _pool() -> None:
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(answer).result() == answer()


def _no_fork() -> None:
    """What shares nothing."""
    subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=os.getpid)
    child = multiprocessing.get_context("spawn").Process(target=os.getpid)
    child.start()
    child.join()
    assert child.exitcode == 0


_BY_PARTITION = (_fork, _process, _pool, _no_fork)


@bolt
def forks(record: Record) -> str:
    if text(record) in TROUBLE:
        _BY_PARTITION[record.partition]()
    return text(record)


@bolt(blocking=True)
def forks_in_a_thread(record: Record) -> str:
    if text(record) in TROUBLE:
        _BY_PARTITION[record.partition]()
    return text(record)


@bolt
async def forks_on_the_loop(record: Record) -> str:
    if text(record) in TROUBLE:
        _BY_PARTITION[record.partition]()
    return text(record)


def _through(step: object) -> Topology:
    made = Topology("process")
    made.source(TOPIC).then(step).into(Lines(), batch_seconds=BATCH_SECONDS)  # type: ignore[arg-type]
    made.dead_letters.into(KafkaSink(f"{TOPIC}.dead"))
    return made


forking = _through(forks)
forking_in_a_thread = _through(forks_in_a_thread)
forking_on_the_loop = _through(forks_on_the_loop)
