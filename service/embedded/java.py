"""Java: finding it, finding PySpark's jars, and building command lines."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from service.embedded.errors import JavaMissing, SparkJarsMissing
from topology.errors import missing_extra

NEEDED_VERSION = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_QUESTION_SECONDS = 30.0


def find_java() -> Path:
    """Return the `java` to use: JAVA_HOME's when that is set (as Spark does), else PATH's.

    Raises JavaMissing when there is none, or one older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaMissing(NEEDED_VERSION, f"JAVA_HOME is {home}, which has no bin/java")
        origin = "JAVA_HOME"
    else:
        named = shutil.which("java")
        if named is None:
            raise JavaMissing(NEEDED_VERSION, "JAVA_HOME is not set and PATH has no java")
        java = Path(named)
        origin = "PATH"
    version = _version_of(java)
    if version is None or version < NEEDED_VERSION:
        said = "does not tell its version" if version is None else f"is version {version}"
        raise JavaMissing(NEEDED_VERSION, f"{java} (from {origin}) {said}")
    return java


@functools.lru_cache
def _version_of(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_QUESTION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def pyspark_jars(*names: str) -> list[Path]:
    """Return PySpark's jars of these artifacts, in any version, without importing PySpark.

    Raises SparkJarsMissing when PySpark or one of the jars is not there.
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
    java: Path,
    main: str,
    classpath: Iterable[Path],
    *,
    heap_mb: int,
    flags: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> list[str]:
    """Return the command line of a small JVM that runs one class.

    The serial collector starts quickest and has the least threads and memory, which is
    what a server of one machine shared with others wants.
    """
    return [
        str(java),
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        *flags,
        "-cp",
        os.pathsep.join(str(path) for path in classpath),
        main,
        *arguments,
    ]
