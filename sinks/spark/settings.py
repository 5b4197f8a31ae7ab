"""The Spark properties Headrace starts from; a user's `[spark.conf]` lies over them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

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
    # Without native Hadoop the checksummed file system starts a process per file.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A table's state is small; the default of 50 tasks for it costs more than the write.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_LOCAL_ONLY = ("spark.driver.bindAddress", "spark.driver.host")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def settings(
    app_name: str, conf: Mapping[str, str], jars: Sequence[str], log4j: Path
) -> dict[str, str]:
    """All properties of the session: defaults, Delta's if its jar is there, then the user's.

    On a cluster (`spark.master` not local) the driver's address is left to Spark and the user.
    """
    merged = {**_DEFAULTS, "spark.app.name": app_name}
    if any("delta-spark" in Path(jar).name for jar in jars):
        merged |= _DELTA
    if not conf.get("spark.master", "local").startswith("local"):
        merged = {name: value for name, value in merged.items() if name not in _LOCAL_ONLY}
    merged |= conf
    if jars:
        merged["spark.jars"] = ",".join(filter(None, [*jars, conf.get("spark.jars")]))
    # A driver out of memory must die, so that it is started anew, and not linger half dead.
    ours = f"-XX:+ExitOnOutOfMemoryError -Dlog4j2.configurationFile={log4j.as_uri()}"
    merged[_JAVA_OPTIONS] = f"{ours} {conf.get(_JAVA_OPTIONS, '')}".strip()
    return merged


LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
