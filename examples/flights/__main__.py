"""The main job: a year of real flights, from an own Kafka into an own Delta table.

python -m examples.flights [--state-dir DIR] [--limit N] [--sink spark|delta]
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from examples.flights.latest import by_hand, by_spark, lines
from examples.flights.pipeline import TABLE, native, topology
from examples.flights.proof import dead_letters_in, rows_in_table
from examples.flights.publish import publish
from examples.running import Outcome, Surroundings, arguments, run_example
from service.config.settings import load
from service.wiring import spark_driver
from sinks.spark.driver import SparkDriver

CONFIG = Path(__file__).with_name("service.toml")
TOPIC = "flights"
# Java's second compiler and its default collector take a third of the processor's time, which a
# run of half a minute never gets back, nor does one query the statistics and check sums of a table.
# Without that compiler Java keeps little memory for code.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:cds=off"
)
SHORT_RUN = {
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
}
# Spark starts two seconds sooner from an archive of the classes it loaded in the first run.
CLASSES = Path(sys.prefix) / f"flights-classes-{version('pyspark')}.jsa"
ARCHIVE_SECONDS = 60.0
TOPOLOGIES = {"spark": topology, "delta": native}


def main() -> int:
    """Publish, run until caught up, print the account; return the exit code."""
    parser = arguments("flights", __doc__)
    parser.add_argument("--limit", type=int, help="only the first N flights")
    parser.add_argument("--sink", choices=TOPOLOGIES, default="spark", help="who writes the table")
    options = parser.parse_args()
    # Whoever writes the table, Spark is asked about it.
    java, draft = JAVA_OPTIONS, None
    if CLASSES.exists():
        java += f" -XX:SharedArchiveFile={CLASSES}"
    elif not options.limit:
        draft = CLASSES.with_suffix(f".{os.getpid()}")
        java += f" -XX:ArchiveClassesAtExit={draft}"
    conf = {**SHORT_RUN, "spark.driver.extraJavaOptions": java}
    spark = spark_driver("flights", load(CONFIG, {"spark": {"conf": conf}}), ["delta"])
    run = partial(_run, limit=options.limit, sink=options.sink, spark=spark, draft=draft)
    return run_example("flights", options.state_dir, run, spark=spark)


def _run(
    here: Surroundings, limit: int | None, sink: str, spark: SparkDriver, draft: Path | None
) -> Outcome:
    """Run the pipeline over freshly published flights."""
    here.progress.step("publishing flights")
    publish(
        here.servers.kafka.address,
        TOPIC,
        limit=limit,
        progress=lambda done, total: here.progress.step("publishing flights", done, total),
    )
    config = here.config(CONFIG)
    account = here.run(TOPOLOGIES[sink], config)
    if not account.caught_up:
        return Outcome(account)
    # The account is the pipeline's own; what follows is not.
    gaps = []
    table = here.warehouse / TABLE
    rows = rows_in_table(table)
    if rows != account.rows:
        gaps.append(f"the account has {account.rows} rows, but the table holds {rows}")
    letters = dead_letters_in(here.servers.kafka.address, str(account.dead_letters))
    if letters != account.dead_lettered:
        gaps.append(f"the account has {account.dead_lettered} dead letters, the topic {letters}")
    here.progress.step("asking Spark SQL")
    with ThreadPoolExecutor(1) as beside:
        counted = beside.submit(by_hand, limit)
        found = by_spark(spark, table)
    if found != (wanted := counted.result()):
        gaps.append(f"Spark SQL finds {found}, a count of the source {wanted}")
    if draft is not None:
        here.progress.step("keeping Spark's classes for the next run")
        spark.run(partial(_archive, draft), group="archive")
    return Outcome(account, gaps, [*lines(found)])


def _archive(draft: Path, session: Any) -> None:
    """Have the JVM end by itself, which is when it writes the archive."""
    process = session.sparkContext._gateway.proc  # noqa: SLF001
    process.stdin.close()
    with suppress(TimeoutExpired):
        if process.wait(ARCHIVE_SECONDS) == 0 and draft.exists():
            draft.replace(CLASSES)


if __name__ == "__main__":
    sys.exit(main())
