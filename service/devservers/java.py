"""Find Java and PySpark's jars, and build command lines of JVMs."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from topology.errors import missing_extra

NEEDED_VERSION = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS = 30.0
_FLAGS = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true",
)  # fmt: skip


class DevServerError(Exception):
    """A server on this machine cannot be started."""


class JavaMissing(DevServerError):
    """No Java of a usable version was found."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"no usable Java: {found}, expected Java {NEEDED_VERSION} or newer. "
            "Install it, or set JAVA_HOME to an installation."
        )


class SparkJarsMissing(DevServerError):
    """A jar of PySpark's was not found."""


def find_java() -> Path:
    """Return JAVA_HOME's `java` if that is set (as Spark does), else PATH's. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    named = f"{home}/bin/java" if home else shutil.which("java")
    if named is None:
        raise JavaMissing("JAVA_HOME is not set and PATH has no java")
    if not os.access(named, os.X_OK):
        raise JavaMissing(f"JAVA_HOME is {home}, which has no bin/java")
    java = Path(named)
    version = _version_of(java)
    if version is None or version < NEEDED_VERSION:
        found = "without a version" if version is None else f"version {version}"
        raise JavaMissing(f"{java} (from {'JAVA_HOME' if home else 'PATH'}) is {found}")
    return java


@functools.lru_cache
def _version_of(java: Path) -> int | None:
    command = [str(java), "-version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def pyspark_jars(*names: str) -> list[Path]:
    """Return PySpark's jars of these artifacts, in any version, without importing PySpark.

    Raises SparkJarsMissing when PySpark or one of the jars is missing.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        needs = f"jar '{names[0]}' comes with PySpark"
        raise SparkJarsMissing(missing_extra(needs, "spark"))
    folder = Path(spec.origin).parent / "jars"
    found = []
    for name in names:
        matches = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not matches:
            raise SparkJarsMissing(f"jar '{name}' comes with PySpark: {folder} has none")
        found.append(matches[-1])
    return found


def java_command(
    main: str,
    classpath: Iterable[Path],
    arguments: Sequence[object],
    *,
    heap_mb: int,
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the command line of a small JVM that runs one class. Raises JavaMissing.

    The serial collector and the first compiler start fastest, with the fewest threads.
    """
    places = os.pathsep.join(map(str, classpath))
    return [
        str(find_java()),
        f"-Xmx{heap_mb}m",
        *_FLAGS,
        *flags,
        "-cp",
        places,
        main,
        *map(str, arguments),
    ]
