"""The Spark properties Headrace starts from; a user's `[spark.conf]` lies over them."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from sinks.errors import SparkStartFailed
from sinks.names import local_path
from topology.errors import SinkFailed, missing_extra

_DEFAULTS = {
    # local[N,4]: a task whose worker died is tried again; with plain local[N] the job fails.
    "spark.master": "local[2,4]",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Bookkeeping of finished jobs is what grows in a driver that runs for months.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    # Values are stored as they are: no rebasing of dates before 1582, no refusal of them.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Delta's log takes no other: a write's own options (`local_options`) do not reach it.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
LOG_STORE = "headrace.ConditionalLogStore"  # compiled by jvm.py
# What a jar needs, by the beginning of its file's name.
_OF_JARS: Mapping[str, Mapping[str, str]] = {
    "delta-spark": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # A table's state is small; the default of 50 tasks for it costs more than the write.
        "spark.databricks.delta.snapshotPartitions": "2",
    },
    "iceberg-spark-runtime": {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        )
    },
    "hadoop-aws": {f"spark.delta.logStore.{scheme}.impl": LOG_STORE for scheme in ("s3", "s3a")},
}
_LOCAL_ONLY = ("spark.driver.bindAddress", "spark.driver.host")
_MAKES_A_SECRET = ("local", "k8s:")  # with these masters Spark itself, in the driver's memory
_LISTS = ("spark.sql.extensions", "spark.jars")  # of ours and the user's, neither goes without
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Properties that would have no driver beside this process, with the values that do so.
_ELSEWHERE = {
    "spark.remote": None,
    "spark.api.mode": "connect",
    "spark.submit.deployMode": "cluster",
}
# Beginnings of the names that a JVM must have before it has a context. They become its arguments,
# which every user of the machine can read.
ARGUMENTS = (
    "spark.master",
    "spark.driver.memory",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extra",
    "spark.driver.userClassPathFirst",
    "spark.jars",
    "spark.kerberos.",
    "spark.submit.",
)
# Not for the whole session: S3A buffers through the file system that these replace.
_LOCAL_OPTIONS = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",  # the cache would give them the session's
}


def local_options(path: str | None) -> Mapping[str, str]:
    """Options for Spark's write to a path: no `.crc` files on local disks.

    Hadoop starts one process (`chmod`) per file less without them.
    """
    return {} if path is None or local_path(path) is None else _LOCAL_OPTIONS


def check_installed(who: str) -> None:
    """Raise SinkFailed, naming who needs it and what installs it, unless PySpark is there."""
    if find_spec("pyspark") is None:
        raise SinkFailed(missing_extra(f"{who} needs PySpark", "spark"))


_MASTER = re.compile(r"local(\[(\d+|\*)( *, *\d+)?\])?|local-cluster\[.+\]|yarn|\w+://.+")


def refusals_of(conf: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Give the properties that Spark cannot be started with, what was found, what is allowed."""
    for name, value in conf.items():
        if not name.startswith("spark."):
            near = get_close_matches(name, _DEFAULTS, 1)
            allowed = "what begins with 'spark.' (Hadoop's with 'spark.hadoop.')"
            yield name, "a name that Spark ignores", ", or ".join([*near, allowed])
        if name in _ELSEWHERE and _ELSEWHERE[name] in (None, value.lower()):
            allowed = "no such property: Spark's driver has to run beside this process"
            yield name, f"'{value}'", allowed
        if name == "spark.master" and not _MASTER.fullmatch(value):
            allowed = (
                "local, local[2], local[*], local[2,4], yarn, spark://host:port or k8s://host:port"
            )
            yield name, f"'{value}'", allowed


def check(conf: Mapping[str, str]) -> None:
    for name, found, allowed in refusals_of(conf):
        raise SparkStartFailed(f"[spark.conf] {name}: found {found}, expected {allowed}")


def settings(
    app_name: str,
    conf: Mapping[str, str],
    jars: Sequence[str],
    home: Path,
    python_path: Sequence[str] = (),
) -> dict[str, str]:
    """All properties of the session: defaults, those of the jars, then the user's.

    The user's win, but for lists and the driver's end when it is out of memory. On a cluster the
    driver's address is left to Spark and the user. The driver's temporary files, jars and blocks go
    to `home`; Python workers look for modules in `python_path`.
    """
    merged = {**_DEFAULTS, "spark.app.name": app_name}
    absolute = map(os.path.abspath, python_path)
    if path := [each for each in absolute if os.pathsep not in each]:
        merged["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(path)
        merged["spark.executorEnv.PYTHONSAFEPATH"] = "1"  # else the current folder is the first
    lists: dict[str, list[str]] = {name: [] for name in _LISTS}
    lists["spark.jars"] += jars
    for jar, needed in _OF_JARS.items():
        if any(Path(each).name.startswith(jar) for each in jars):
            for name, value in needed.items():
                if name in lists:
                    lists[name].append(value)
                else:
                    merged[name] = value
    master = conf.get("spark.master", "local")
    if master.startswith(_MAKES_A_SECRET) and not master.startswith("local-cluster"):
        merged["spark.authenticate"] = "true"
    if not master.startswith("local"):
        merged = {name: value for name, value in merged.items() if name not in _LOCAL_ONLY}
    merged |= conf
    for name, ours in lists.items():
        users = [each.strip() for each in conf.get(name, "").split(",") if each.strip()]
        if each_once := list(dict.fromkeys([*ours, *users])):
            merged[name] = ",".join(each_once)
    # A driver out of memory must die, so that it is started anew, and not linger half dead.
    options = [
        f"-Dlog4j2.configurationFile={(home / LOG4J_FILE).as_uri()}",
        f'"-Djava.io.tmpdir={home}"',
        conf.get(_JAVA_OPTIONS),
        "-XX:+ExitOnOutOfMemoryError",
    ]
    merged[_JAVA_OPTIONS] = " ".join(filter(None, options))
    return merged


LOG4J_FILE = "log4j2.properties"
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
