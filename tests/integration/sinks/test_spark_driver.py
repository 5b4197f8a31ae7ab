import gc
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sinks import ParquetSink
from sinks.batcher import PendingBatch
from sinks.errors import SparkDied, SparkStartFailed, SparkTimeout
from sinks.spark import driver as driver_module
from sinks.spark.driver import SparkDriver
from sinks.tries import WriteRetries
from sinks.writer import Writer, WriteResult
from topology.sink import SinkContext

pytestmark = pytest.mark.integration


def count(session: Any) -> int:
    return int(session.range(1000).count())


def jvm_process(driver: SparkDriver) -> "subprocess.Popen[bytes]":
    assert driver._jvm is not None
    return driver._jvm.process


def pending(sequence: int) -> PendingBatch:
    rows = [{"number": sequence * 1000 + index} for index in range(1000)]
    zeros = np.zeros(1000, np.int64)
    return PendingBatch(sequence, [rows], 1000, 8000, zeros, zeros.astype(np.uint64))


def number_schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa.schema([("number", pa.int64())])


def test_a_jvm_killed_between_and_within_writes_is_started_anew_and_no_row_is_lost(
    driver: SparkDriver, tmp_path: Path
) -> None:
    """Promise 15: with Spark away it restarts Spark and retries the micro-batch."""
    sink = ParquetSink("numbers", schema=number_schema())
    sink.open(SinkContext("pipeline", "sink", {}, str(tmp_path), driver))
    done: queue.SimpleQueue[WriteResult] = queue.SimpleQueue()
    writer = Writer(
        sink,
        done.put,
        retries=WriteRetries(first_seconds=0.01),
        rng=random.Random(1),
    )
    writer.start()
    original = sink._append
    try:
        writer.submit(pending(1))
        assert done.get(timeout=60).error is None

        jvm_process(driver).kill()
        writer.submit(pending(2))
        assert done.get(timeout=60).error is None
        assert driver.restarts == 1

        def append_and_die(uris: list[str]) -> None:
            sink._append = original  # type: ignore[method-assign]
            killer = threading.Timer(0.02, jvm_process(driver).kill)
            killer.start()
            original(uris)
            killer.join()
            driver.run(count, group="after")  # had the write won the race, this does not

        sink._append = append_and_die  # type: ignore[method-assign]
        writer.submit(pending(3))
        assert done.get(timeout=60).error is None
        assert driver.restarts == 2
    finally:
        assert writer.stop(10)
        sink.close()
    found = pq.read_table(tmp_path / "numbers").column("number").to_pylist()
    assert set(found) == set(range(1000, 4000))


def test_a_stopped_context_and_a_frozen_jvm_heal_with_the_next_run(
    delta_jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "_GRACE_SECONDS", 0.5)
    driver = SparkDriver("test", {}, lambda: delta_jars, job_deadline_seconds=8)
    try:
        driver.run(lambda session: session.sparkContext._jsc.stop(), group="stop")
        with pytest.raises(SparkDied, match="stopped SparkContext"):
            driver.run(count, group="count")
        assert driver.run(count, group="count") == 1000
        assert driver.restarts == 1

        os.kill(jvm_process(driver).pid, signal.SIGSTOP)
        with pytest.raises(SparkTimeout):
            driver.run(count, group="count")
        assert driver.run(count, group="count") == 1000
        assert driver.restarts == 2
    finally:
        driver.close()


def test_the_deadline_cancels_a_job_that_hangs_and_spark_lives_on() -> None:
    def hang(session: Any) -> None:
        session.sparkContext.parallelize([600.0], 1).foreach(time.sleep)

    driver = SparkDriver("test", {}, job_deadline_seconds=8)
    try:
        driver.open()
        pid = jvm_process(driver).pid
        with pytest.raises(SparkTimeout, match="'hang' did not end within 8 seconds"):
            driver.run(hang, group="hang")
        assert driver.run(count, group="hang") == 1000
        assert jvm_process(driver).pid == pid
        assert driver.restarts == 0
    finally:
        driver.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # PySpark leaves a dead child's pipe
def test_a_spark_that_cannot_start_says_why() -> None:
    driver = SparkDriver("test", {"spark.master": "nonsense"})
    with pytest.raises(SparkStartFailed, match=r"did not start:.* Master must") as caught:
        driver.open()
    assert "\n" not in str(caught.value)
    driver.close()
    del caught
    gc.collect()


PROGRAM = """
import os, signal, sys, threading
from sinks.spark.driver import SparkDriver
interrupted = threading.Event()
signal.signal(signal.SIGINT, lambda *_: interrupted.set())
driver = SparkDriver("test", {"spark.driver.memory": "512m"})
driver.open()
os.killpg(0, signal.SIGINT)  # what Ctrl-C in a terminal does
assert interrupted.wait(10), "our own handler was replaced"
assert driver.run(lambda session: session.range(10).count(), group="g") == 10
assert driver.restarts == 0
print("pid", driver._jvm.process.pid, flush=True)
if sys.argv[1] == "close":
    driver.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_ctrl_c_does_not_reach_the_jvm_and_it_never_outlives_its_owner(ending: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        out, err = process.communicate(timeout=90)
    assert process.returncode == (0 if ending == "close" else -signal.SIGKILL), err
    pid = int(out.split("pid ")[-1].split()[0])
    ended = threading.Event()
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return
        ended.wait(0.1)
    pytest.fail(f"the JVM {pid} outlived its owner")
