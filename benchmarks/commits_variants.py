"""The variants of suite commits: orders into a Delta table, in hundreds of small transactions.

Both engines do the work of suite spark, exactly once, a thousand records at a time.
"""

from collections.abc import Callable
from dataclasses import asdict

from benchmarks import order_table
from benchmarks.footprint import Footprint
from benchmarks.job import Figures, Job
from benchmarks.kinds import DELTA
from benchmarks.measured import run_headrace
from benchmarks.order_table import PRICED
from benchmarks.place import place
from benchmarks.processes import tree_seconds
from benchmarks.spark_topologies import priced_columns
from headrace import Topology
from headrace.sinks import DeltaSink
from partition.kafka.properties import DEFAULTS
from service.service import Service
from service.snapshot import Snapshot
from sinks.spark.driver import SparkDriver
from transactions.policy import TransactionPolicy

COMMIT_RECORDS = 1_000
# What the client fetches ahead is used up at the end; with more of it a growth could hide there.
_KAFKA = {**DEFAULTS, "queued.min.messages": COMMIT_RECORDS, "queued.max.messages.kbytes": 1_000}
_EARLY = 100  # commits, after which nothing should grow; of fewer than 300 a third
EARLY, END = "early", "end"


def early(records: int) -> int:
    """After how many commits the memory is looked at for the first time."""
    return max(1, min(_EARLY, records // COMMIT_RECORDS // 3))


class Marks:
    """Looks at the memory after the first commits, and when all is committed."""

    def __init__(self, spark: SparkDriver, records: int) -> None:
        self._spark = spark
        self._records = records
        self.found: Figures = {}

    def __call__(self, _service: Service, snapshot: Snapshot) -> None:
        """Look, if it is time and was not done."""
        commits = sum(sink.batches_written for sink in snapshot.sinks)
        if commits >= early(self._records):
            self._look(EARLY, commits)
        if sum(part.committed for part in snapshot.partitions) >= self._records:
            self._look(END, commits)

    def _look(self, mark: str, commits: int) -> None:
        if f"{mark}_commits" not in self.found:
            self.found[f"{mark}_commits"] = commits
            footprint = asdict(Footprint.of(self._spark))
            self.found |= {f"{mark}_{name}": found for name, found in footprint.items()}


def local(job: Job) -> Figures:
    """Two vectorised bolts on the local engine: pyarrow writes the files, the JVM commits them."""
    topology = Topology("commits", reliability="exactly-once")
    rows = priced_columns(topology, job.topic)
    rows.into(DeltaSink(order_table.NAME, schema=PRICED), batch_rows=COMMIT_RECORDS)
    with place(job, DELTA) as there:
        marks = Marks(there.spark, job.records)
        found = run_headrace(
            topology,
            job,
            kafka=_KAFKA,
            # A window is as many transactions as may be open, and so tells how large one is.
            pipeline={"max_pending": TransactionPolicy().max_active * COMMIT_RECORDS},
            storage={"warehouse": there.warehouse},
            before=there.prepare,
            cpu=tree_seconds,
            on_snapshot=marks,
        )
        return {**found, **marks.found, **there.contents()}


VARIANTS: dict[str, Callable[[Job], Figures]] = {"local": local}
