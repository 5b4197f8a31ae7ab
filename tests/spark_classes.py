"""Makes archives of the classes that servers load: python -m tests.spark_classes ARCHIVE.

The tests start many JVMs for Spark, Kafka and ZooKeeper. With an archive (Java's class data
sharing) each start takes a third less of a processor, and making it costs about two starts.
Without it, or with one that does not fit, the JVMs load their classes one by one.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from service.devservers.process import EmbeddedServer
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.servers import opened

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# An archive fits JVMs with the options it was made with. Without the better compiler Java keeps
# 48 MB for code, which a Spark that many files of tests share fills; then its jobs fail.
LIGHT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
_EXIT_SECONDS = 60.0
_QUIET = "-Xlog:cds=off"
_jvm_flags = EmbeddedServer.jvm_flags


def use() -> None:
    """Have the JVMs that this process starts take the archives, if there are some."""
    if ARCHIVE.exists():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}")
    _flag_servers("SharedArchiveFile")


def _flag_servers(option: str) -> None:
    """Start servers of this process with an archive each."""

    def jvm_flags(server: EmbeddedServer) -> tuple[str, ...]:
        archive = ARCHIVE.with_name(f"{server.name}-classes.jsa")
        if option == "SharedArchiveFile" and not archive.exists():
            return _jvm_flags(server)
        return (*_jvm_flags(server), f"-XX:{option}={archive}", _QUIET)

    EmbeddedServer.jvm_flags = jvm_flags


def make(archive: Path) -> None:
    """Start each server once, do a little of what tests do, and have its JVM write the archive."""
    os.environ["JDK_JAVA_OPTIONS"] = LIGHT
    _flag_servers("ArchiveClassesAtExit")
    EmbeddedServer.stop_seconds = _EXIT_SECONDS
    for kind in (EmbeddedKafka, EmbeddedZooKeeper):
        with tempfile.TemporaryDirectory() as folder, opened(kind(Path(folder))):
            pass
    draft = archive.with_suffix(".draft")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={draft} {_QUIET}"
    # Only now: PySpark may read the environment when it is imported.
    from service.wiring import jars_of  # noqa: PLC0415
    from sinks.spark.driver import SparkDriver  # noqa: PLC0415

    folder = tempfile.mkdtemp()
    spark = SparkDriver("classes", {}, jars=partial(jars_of, ["delta", "iceberg"]))
    try:
        spark.run(partial(_work, Path(folder)), group="work")
        with contextlib.suppress(Exception):  # nothing answers when it has ended
            spark.run(_exit, group="exit")
    finally:
        spark.close(_EXIT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
    if draft.exists():
        draft.replace(archive)


def _work(folder: Path, session: Any) -> None:
    rows = session.range(10).selectExpr("id", "cast(id as string) as name")
    rows.write.parquet(f"{folder}/parquet")
    session.sql(f"CREATE TABLE delta.`{folder}/delta` (id bigint, name string) USING delta")
    rows.write.format("delta").mode("append").save(f"{folder}/delta")
    session.read.format("delta").load(f"{folder}/delta").collect()


def _exit(session: Any) -> None:
    """End the JVM in an orderly way, which is when it writes the archive."""
    session._jvm.System.exit(0)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
