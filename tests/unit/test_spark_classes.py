"""JVMs that compile lightly have the room for code that others have."""

import re
import subprocess

import pytest

from benchmarks import place
from service.devservers.java import find_java
from tests import spark_classes
from tests.support.patience import seconds

RESERVED = re.compile(r"ReservedCodeCacheSize\s*=\s*(\d+)")


def room(*options: str) -> int:
    """How many bytes a JVM with these options has for compiled code."""
    command = [str(find_java()), *options, "-XX:+PrintFlagsFinal", "-version"]
    said = subprocess.run(
        command, env={}, check=True, capture_output=True, text=True, timeout=seconds(60)
    )
    (size,) = RESERVED.findall(said.stdout)
    return int(size)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(spark_classes.LIGHT, id="the tests'"),
        pytest.param(place.LIGHT["spark.driver.extraJavaOptions"], id="the benchmark's"),
    ],
)
def test_one_spark_for_many_files_has_as_much_room_for_code_as_the_products(options: str):
    assert room(*options.split()) >= room()
