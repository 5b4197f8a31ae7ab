"""S12: the power is cut; what a sink has answered is there, and the table opens. Needs root."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.sinks import SparkSink
from sinks.storage import Storage
from tests.acceptance import evidence
from tests.support.batches import SCHEMA, rows
from tests.support.lake import NAME, SINKS, Lake, Owner, in_sqlite, rows_to
from tests.support.limits import Disk
from tests.support.patience import seconds, until
from topology.sink import Batch, SinkContext

pytestmark = pytest.mark.faults

TRANSACTIONS = 3
CUTS = 6
AFTER_THE_COMMIT = ("sinks.tables.delta_log_files.sync", "sinks.tables.iceberg_log.sync")


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def lake(disk: Disk, kind: str) -> Lake:
    warehouse = disk.path / "warehouse"
    warehouse.mkdir(exist_ok=True)
    storage = in_sqlite(Storage(str(warehouse)), warehouse)
    return Lake(kind, storage, storage)


def goes_on(table: Lake, least: int, most: int) -> None:
    """All transactions up to one of these are there, once, and the next owner adds another."""
    successor = Owner(table, epoch=2)
    found = successor.fence()
    assert least <= found <= most
    assert table.numbers() == rows_to(found)
    successor.commit()
    assert table.numbers() == rows_to(found + 1)
    successor.sink.close()


def write(table: Lake, told: Connection) -> None:
    """Another process's part: commit until it is killed, and tell of each answer."""
    owner = Owner(table)
    told.send(owner.fence())
    while True:
        owner.commit()
        told.send(owner.txid)


def stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped: none is within a system call."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


@pytest.mark.parametrize("kind", SINKS)
def test_answered_transactions_outlive_a_power_cut(kind, disk):
    """Promise 3: after each answer, the fence's too."""
    with disk.mounted():
        owner = Owner(lake(disk, kind))
        owner.fence()
        images = [disk.image()]
        for _ in range(TRANSACTIONS):
            owner.commit()
            images.append(disk.image())
        owner.sink.close()
    for txid, image in enumerate(images):
        with disk.after(image):
            assert lake(disk, kind).numbers() == rows_to(txid)
            goes_on(lake(disk, kind), txid, txid)


@pytest.mark.parametrize("kind", SINKS)
def test_transactions_found_on_replay_outlive_a_power_cut(kind, disk, monkeypatch):
    """Promise 3: who committed them was killed before the sync that follows."""
    with disk.mounted():
        owner = Owner(lake(disk, kind))
        owner.fence()
        with monkeypatch.context() as patch:
            for name in AFTER_THE_COMMIT:
                patch.setattr(name, lambda _: None)
            owner.commit()
        unsynced = disk.image()
        successor = Owner(lake(disk, kind), epoch=2)
        assert successor.fence() == 1
        synced = disk.image()
        for each in (owner, successor):
            each.sink.close()
    with disk.after(unsynced):  # so that this is known to be a power cut
        assert lake(disk, kind).numbers() == rows_to(0)
    with disk.after(synced):
        assert lake(disk, kind).numbers() == rows_to(1)


@pytest.mark.parametrize("kind", SINKS)
def test_power_cut_at_any_moment_tears_no_table(kind, disk):
    """Promise 3: what is torn is ours, nobody was answered, and it is repaired at the start."""
    rng = random.Random(kind)
    cuts: list[tuple[int, Path]] = []
    with disk.mounted():
        context = multiprocessing.get_context("spawn")  # delta-rs does not survive fork()
        answers, told = context.Pipe(duplex=False)
        writer = context.Process(target=write, args=(lake(disk, kind), told))
        writer.start()
        pid = writer.pid or 0
        try:
            for _ in range(CUTS):
                assert answers.poll(seconds(60)), "no transaction is committed"
                answered = answers.recv()
                time.sleep(rng.uniform(0.0, 0.03))
                os.kill(pid, signal.SIGSTOP)
                until("it stands still", lambda: stands_still(pid))
                while answers.poll():
                    answered = answers.recv()
                cuts.append((answered, disk.image()))
                os.kill(pid, signal.SIGCONT)
        finally:
            writer.kill()
            writer.join()
    for txid, image in cuts:
        with disk.after(image):
            goes_on(lake(disk, kind), txid, txid + 1)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_batches_that_spark_wrote_outlive_a_power_cut(kind, disk, spark):
    """Promise 3."""
    warehouse = disk.path / "warehouse"
    images = []
    with disk.mounted():
        sink = SparkSink[Any](NAME, format=kind, schema=SCHEMA)
        sink.open(SinkContext("p", "s", {}, Storage(str(warehouse)), spark))
        for number in range(1, TRANSACTIONS + 1):
            sink.write(Batch(number, [rows(number)], 1))
            images.append(disk.image())
        sink.close()
    for number, image in enumerate(images, 1):
        with disk.after(image):
            table = warehouse / NAME
            files = map(pq.read_table, sorted(table.glob("*.parquet")))
            found = evidence.read_table(table) if kind == "delta" else pa.concat_tables(files)
            assert sorted(found["number"].to_pylist()) == [*range(1, number + 1)]
