"""The order in which files of tests start, and which of them share a worker.

A file's tests share servers, so one worker runs them all. One that starts late and lasts long would
keep a single worker busy at the end, while the others have nothing left to do.
"""

from pathlib import PurePath

from xdist.scheduler import LoadFileScheduling

# One worker runs all files of a group, for they share what takes long to start: PySpark has one
# Spark in a process, and the last of its files kills it.
GROUPS = {
    "spark": (
        "integration/sinks/test_spark_sink.py",
        "integration/sinks/test_tables_with_spark.py",
        "integration/sinks/test_references.py",
        "integration/sinks/test_maintenance_with_spark.py",
        "integration/service/test_spark_steps.py",
        "contract/test_sink.py",
        "integration/sinks/test_spark_tasks.py",
        "integration/sinks/test_spark_driver.py",
    ),
    "breakable servers": ("acceptance/test_drain.py", "acceptance/test_outages.py"),
}
# More than half a minute each, from the longest on.
LONGEST = (
    *GROUPS["spark"],
    "integration/partition/test_kafka_security.py",
    "acceptance/test_peers_failures.py",
    "integration/service/test_cli.py",
    "acceptance/test_replicas.py",
    "integration/sinks/test_spark_sink_on_s3.py",
    "contract/test_transactional_sink.py",
    "integration/service/test_documented_commands.py",
    "integration/service/test_dead_letters.py",
    *GROUPS["breakable servers"],
    "typing/test_typing.py",
    "integration/sinks/test_spark_process.py",
    "integration/sinks/test_spark_driver_start.py",
    "integration/partition/test_zookeeper_tls.py",
    "contract/test_fetcher_outages.py",
    "acceptance/test_runtime.py",
)
_PLACES = {file: place for place, file in enumerate(LONGEST)}


class Scheduling(LoadFileScheduling):
    """Hand out files, and those of a group together."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """The tests of one scope run on one worker."""
    file = _file(nodeid)
    return next((name for name, files in GROUPS.items() if file in files), file)


def place(nodeid: str) -> int:
    """What to sort tests by; all whose file is not among the longest have the same place."""
    return _PLACES.get(_file(nodeid), len(LONGEST))


def _file(nodeid: str) -> str:
    return PurePath(nodeid.split("::", 1)[0]).relative_to("tests").as_posix()
