import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from sinks import SparkSink
from sinks.errors import SparkDied, SparkTimeout
from sinks.spark import driver as driver_module
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from sinks.writer import Done, SinkWriter, WriteRetries
from tests.support.batches import rows, write
from tests.support.delta_table import SparkTable
from tests.support.patience import seconds
from tests.support.spark import PAGE, healing
from topology.sink import Batch, SinkContext

pytestmark = pytest.mark.integration


def count(session: Any) -> int:
    return int(session.range(1000).count())


class Remembered(NamedTuple):
    """How much a JVM holds of what is done: jobs, queries, and objects for Python."""

    jobs: int
    queries: int
    objects: int


def remembered(session: Any) -> Remembered:
    from py4j.java_gateway import JavaObject  # noqa: PLC0415 - Spark starts with the first test

    server = JavaObject("GATEWAY_SERVER", session.sparkContext._gateway._gateway_client)
    return Remembered(
        session.sparkContext._jsc.sc().statusStore().jobsList(None).size(),
        session._jsparkSession.sharedState().statusStore().executionsCount(),
        server.getGateway().getBindings().size(),
    )


def jvm_process(driver: SparkDriver) -> "subprocess.Popen[bytes]":
    return driver._jvm.process


def numbers(sequence: int) -> Batch:
    return Batch(sequence, [[{"number": sequence * 1000 + index} for index in range(1000)]], 1000)


def number_schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa.schema([("number", pa.int64())])


def test_killed_jvm_is_restarted_without_losing_rows(spark, tmp_path):
    """Promise 15: with Spark away it restarts Spark and retries the micro-batch."""
    sink = SparkSink("numbers", format="parquet", schema=number_schema())
    sink.open(SinkContext("pipeline", "sink", {}, Storage(str(tmp_path)), spark))
    restarts = spark.restarts
    done: queue.SimpleQueue[Done] = queue.SimpleQueue()
    writer = SinkWriter(
        sink,
        done.put,
        retries=WriteRetries(first_seconds=0.01),
    )
    writer.start()
    original = sink._append
    try:
        writer.write(numbers(1))
        assert done.get(timeout=seconds(200)).error is None

        with healing("its JVM has ended between two jobs", spark):
            jvm_process(spark).kill()
            jvm_process(spark).wait()
            writer.write(numbers(2))
            assert done.get(timeout=seconds(200)).error is None
        assert (spark.restarts, writer.retries) == (restarts + 1, 0)

        def append_and_die(*given: Any) -> None:
            sink._append = original  # type: ignore[method-assign]
            killer = threading.Timer(0.02, jvm_process(spark).kill)
            killer.start()
            original(*given)
            killer.join()
            spark.run(count, group="after")  # had the write won the race, this does not

        sink._append = append_and_die  # type: ignore[method-assign]
        writer.write(numbers(3))
        assert done.get(timeout=seconds(200)).error is None
        assert spark.restarts == restarts + 2
    finally:
        assert writer.stop(10)
        sink.close()
    found = pq.read_table(tmp_path / "numbers").column("number").to_pylist()
    assert set(found) == set(range(1000, 4000))


@pytest.mark.nightly
def test_stopped_spark_context_costs_its_jvm(spark, tmp_path):
    spark.open()
    path_before = list(sys.path)
    table = SparkTable(tmp_path / "a place", spark)  # Hadoop has its own ideas of a space
    sink = table.sink()
    write(sink, rows(1, 2))
    assert table.numbers() == [1, 2]
    with healing("its context is stopped", spark) as before:
        spark.run(lambda session: session.sparkContext._jsc.stop(), group="stop")
        with pytest.raises(SparkDied, match="stopped SparkContext"):
            spark.run(count, group="count")
        table.sql("INSERT INTO OURS VALUES (3, 'x')")
    table.sql("INSERT INTO OURS VALUES (4, 'x')")
    assert table.numbers() == [1, 2, 3, 4]
    assert spark.restarts == before.restarts + 1

    spark.run(lambda session: session.stop(), group="stop")  # as code that knows no better does
    with pytest.raises(SparkDied):
        spark.run(count, group="count")
    assert spark.run(count, group="count") == 1000
    assert spark.restarts == before.restarts + 2
    assert sys.path == path_before
    sink.close()


def test_job_past_its_deadline_is_cancelled_alone(spark):
    """Promise 15: each job has a group and a deadline of its own."""
    hanging = threading.Event()

    def hang(session: Any) -> None:
        hanging.set()
        session.sparkContext.parallelize([600.0], 1).foreach(time.sleep)

    def run() -> None:
        with pytest.raises(SparkTimeout, match=r"'hang' did not end within 1\.5 seconds"):
            spark.run(hang, group="hang", deadline_seconds=1.5)

    assert spark.run(count, group="warm") == 1000
    pid, restarts = jvm_process(spark).pid, spark.restarts
    thread = threading.Thread(target=run)
    with healing("a job hangs", spark):
        thread.start()
        assert hanging.wait(seconds(10))
        while thread.is_alive():
            assert spark.run(count, group="beside") == 1000
        thread.join()
    assert spark.run(count, group="hang") == 1000
    assert (jvm_process(spark).pid, spark.restarts) == (pid, restarts)


@pytest.mark.nightly
def test_what_a_driver_remembers_of_jobs_is_bounded(spark):
    """Months of micro-batches: Spark's own bookkeeping, and the objects that py4j holds."""

    def forgets(session: Any) -> None:
        session.range(1).write.format("noop").mode("overwrite").save()

    spark.run(forgets, group="warm")
    before = spark.run(remembered, group="remembered")
    for _ in range(100):
        spark.run(forgets, group="forgets")
    gc.collect()
    # What Spark and py4j forget is forgotten in the background.
    for _ in range(100):
        after = spark.run(remembered, group="remembered")
        if after.jobs <= 55 and after.queries <= 22 and after.objects <= before.objects + 20:
            break
        threading.Event().wait(0.1)
    else:
        pytest.fail(f"remembered before {before}, then {after}")
    assert after.jobs >= 40


@pytest.mark.nightly
def test_a_frozen_jvm_is_killed_also_when_no_job_of_spark_runs(spark, monkeypatch):
    """Promise 15: what cannot be cancelled, as a commit, is ended with its JVM."""
    monkeypatch.setattr(driver_module, "_GRACE_SECONDS", 0.3)
    monkeypatch.setattr(driver_module, "_ANSWER_SECONDS", 0.3)
    spark.open()

    def commit(session: Any) -> None:
        os.kill(jvm_process(spark).pid, signal.SIGSTOP)
        while True:  # it may answer once more before it stops
            session._jvm.java.lang.System.currentTimeMillis()

    def fail(_session: Any) -> None:
        os.kill(jvm_process(spark).pid, signal.SIGSTOP)
        raise ValueError("not Spark's fault")

    event = "a job hangs and cannot be cancelled, or the JVM is frozen"
    with healing(event, spark) as before:
        with pytest.raises(SparkTimeout):
            spark.run(commit, group="commit", deadline_seconds=0.5)
        assert spark.run(count, group="count") == 1000
    with healing("a job fails, and then the JVM does not answer", spark):
        with pytest.raises(SparkDied, match="not Spark's fault"):
            spark.run(fail, group="fail")
        assert spark.run(count, group="count") == 1000
    assert spark.restarts == before.restarts + 2


@pytest.mark.nightly
def test_a_jvm_out_of_memory_ends_and_says_so(spark):
    def fill(session: Any) -> None:
        gateway = session.sparkContext._gateway
        gateway.new_array(session._jvm.long, 1_000_000_000)

    spark.open()
    with healing("its JVM ends under a job", spark) as before:
        with pytest.raises(SparkDied):
            spark.run(fill, group="fill")
        assert spark.run(count, group="count") == 1000
    died = next(each for each in before.logs if each["event"] == "spark_died")
    words = "Terminating due to java.lang.OutOfMemoryError: Java heap space"
    assert died["ended"] == f"status 3: {words}"
    assert f"status 3: {words}" in PAGE.read_text()
    assert spark.restarts == before.restarts + 1
