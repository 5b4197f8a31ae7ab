"""The order in which files of tests start: those that last longest first.

A file's tests share servers, so one worker runs them all. One that starts late and lasts long would
keep a single worker busy at the end, while the others have nothing left to do.
"""

from pathlib import PurePath

# More than half a minute each, from the longest on.
LONGEST = (
    "contract/test_transactional_sink.py",
    "integration/sinks/test_delta_with_spark.py",
    "integration/sinks/test_iceberg_tables.py",
    "integration/sinks/test_spark_driver.py",
    "integration/sinks/test_spark_sink.py",
    "acceptance/test_exactly_once.py",
    "acceptance/test_replicas.py",
    "integration/service/test_cli.py",
    "acceptance/test_drain.py",
    "acceptance/test_outages.py",
    "acceptance/test_peers_failures.py",
    "acceptance/test_examples.py",
    "acceptance/test_crash_points.py",
    "integration/service/test_documented_commands.py",
    "integration/partition/test_kafka_security.py",
    "integration/service/test_operating.py",
    "integration/service/test_import_storm.py",
)
_PLACES = {file: place for place, file in enumerate(LONGEST)}


def place(nodeid: str) -> int:
    """What to sort tests by; all whose file is not among the longest have the same place."""
    file = PurePath(nodeid.split("::", 1)[0]).relative_to("tests").as_posix()
    return _PLACES.get(file, len(LONGEST))
