"""JVMs that compile lightly have the room for code that others have."""

import re
import subprocess

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


def test_light_spark_has_as_much_room_for_code_as_the_products():
    assert room(*spark_classes.LIGHT.split()) >= room()
