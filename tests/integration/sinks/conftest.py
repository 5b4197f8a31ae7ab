"""One Spark for all tests of the sinks, and the jars it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jars.resolver import resolve
from sinks.spark.driver import SparkDriver


@pytest.fixture(scope="session")
def delta_jars() -> list[Path]:
    return resolve("delta")


@pytest.fixture
def driver(delta_jars: list[Path]) -> Iterator[SparkDriver]:
    """A Spark of the test's own, to be broken."""
    driver = SparkDriver("test", {}, lambda: delta_jars, job_deadline_seconds=60)
    yield driver
    driver.close()
