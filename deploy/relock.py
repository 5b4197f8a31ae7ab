"""Write the lock file anew: `python -m deploy.relock`.

Run after changing ROOTS. It fetches every set once, dependencies included, and writes
down what came, so read the difference before committing it.
"""

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from service.jars.lock import LOCK_FILE, Coordinate, Lock, LockedJar
from service.jars.resolver import fetch, sha256_of


class Root(NamedTuple):
    """The coordinates of a set; `transitive` brings the run-time dependencies along."""

    coordinates: tuple[Coordinate, ...]
    transitive: bool


def _root(*coordinates: str, transitive: bool = False) -> Root:
    return Root(tuple(Coordinate(*each.split(":")) for each in coordinates), transitive)


_AMAZON = """
annotations apache-client arns auth aws-core aws-query-protocol aws-xml-protocol checksums
checksums-spi crt-core endpoints-spi http-auth http-auth-aws http-auth-aws-eventstream
http-auth-spi http-client-spi identity-spi json-utils metrics-spi netty-nio-client profiles
protocol-core regions retries retries-spi s3 s3-transfer-manager sdk-core sts
third-party-jackson-core utils
"""

_PROGRAMS = "io.zonky.test.postgres:embedded-postgres-binaries-linux"
ROOTS = {
    # A classpath of its own, complete with scala-library, so that the broker never runs on
    # jars that PySpark chose for itself. The last one leads Kafka's log lines to Log4j.
    "kafka-broker": _root(
        "org.apache.kafka:kafka_2.13:4.1.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
        transitive=True,
    ),
    # What Delta needs beyond PySpark's jars. Its POM also names Unity Catalog's client,
    # which only tables of such a catalogue use, and older versions of Spark's own jars.
    "delta": _root("io.delta:delta-spark_4.1_2.13:4.4.0", "io.delta:delta-storage:4.4.0"),
    # Spark's own Kafka source, for the benchmark that runs Structured Streaming. The rest of what
    # its POM asks for is among PySpark's jars.
    "kafka-source": _root(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    # Hadoop's S3 file system on those parts of Amazon's SDK that it calls, 13 MB. Its POM names a
    # bundle of the whole SDK, 640 MB, which Spark copies whenever it starts. Netty and the rest
    # are among PySpark's jars.
    "s3a": _root(
        "org.apache.hadoop:hadoop-aws:3.4.2",
        "org.reactivestreams:reactive-streams:1.0.4",
        "software.amazon.eventstream:eventstream:1.0.1",
        *(f"software.amazon.awssdk:{part}:2.29.52" for part in _AMAZON.split()),
    ),
    # All of Iceberg in one jar, its own dependencies within.
    "iceberg": _root("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
    # For tests: Spark's view of a catalogue in PostgreSQL.
    "iceberg-jdbc": _root("org.postgresql:postgresql:42.7.14"),
    # The server's programs for tests on machines without Debian's, one jar for each processor.
    "postgres-server-amd64": _root(f"{_PROGRAMS}-amd64:17.6.0"),
    "postgres-server-arm64": _root(f"{_PROGRAMS}-arm64v8:17.6.0"),
}


def relock(path: Path = LOCK_FILE) -> int:
    """Fetch every set, write the lock file, and return its number of lines."""
    jars: list[LockedJar] = []
    with tempfile.TemporaryDirectory(prefix="headrace-relock-") as scratch:
        for name, root in ROOTS.items():
            found = fetch(root.coordinates, Path(scratch) / name, transitive=root.transitive)
            jars += [LockedJar(name, each, sha256_of(jar)) for each, jar in found.items()]
    path.write_text(str(Lock(jars)), encoding="utf-8")
    return len(jars)


if __name__ == "__main__":
    sys.stdout.write(f"{relock()} jars locked in {LOCK_FILE}\n")
