"""Asks a PostgreSQL what is in it, by a JVM of the test's own: without Spark and without a sink."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from service.embedded.java import find_java, pyspark_jars
from service.embedded.postgres import EmbeddedPostgres
from service.jars.resolver import resolve
from tests.support.patience import seconds


def rows_of(server: EmbeddedPostgres, query: str) -> list[dict[str, Any]]:
    """The rows of a query, as the database turns them into JSON."""
    with _jvm() as java:
        properties = java.java.util.Properties()
        properties.setProperty("user", server.user)
        properties.setProperty("password", server.password)
        with closing(java.org.postgresql.Driver().connect(server.url, properties)) as connection:
            asked = f"SELECT json_agg(r)::text FROM ({query}) AS r"  # noqa: S608 - the test's own
            found = connection.createStatement().executeQuery(asked)
            assert found.next()
            return json.loads(found.getString(1) or "[]")


@contextmanager
def _jvm() -> Iterator[Any]:
    """A JVM with PostgreSQL's driver, for a moment."""
    jars = [*pyspark_jars("py4j"), *resolve("postgresql")]
    port, process = launch_gateway(
        jarpath=str(jars[0]),
        classpath=":".join(map(str, jars[1:])),
        java_path=str(find_java()),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(seconds(10))
