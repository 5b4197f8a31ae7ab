"""Ivy, Spark's own resolver, run by itself from PySpark's jars.

A machine that can run Spark has everything this needs: Java, and the Ivy jar inside
PySpark. Ivy's built-in default repository is used unless HEADRACE_IVY_SETTINGS names an
ivysettings file (a mirror, a proxy with a password).
"""

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from service.devservers.java import find_java, java_command, pyspark_jars
from service.jars.errors import ResolutionFailed
from service.jars.lock import Coordinate

SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"
_DEADLINE_SECONDS = 900.0
_ATTEMPTS = 2  # one dropped connection must not end a first start
_DONE = "[SUCCESSFUL ]"
_TELLING = ("not found", "unresolved", "error", "exception", "failed", "timed out", "refused")
_SAID_LINES = 6

Fetched = Callable[[Coordinate], None]


def fetch(
    coordinates: Sequence[Coordinate],
    into: Path,
    *,
    transitive: bool = False,
    fetched: Fetched | None = None,
) -> dict[Coordinate, Path]:
    """Fetch jars into a directory and return where each one lies.

    `into` is on the file system the jars shall be renamed within. `fetched` is called on the
    calling thread as each jar arrives. With `transitive` the run-time dependencies come
    along, one version of each. Raises ResolutionFailed.
    """
    into.mkdir(parents=True, exist_ok=True)
    (into / "ivy.xml").write_text(_module(coordinates, transitive=transitive), encoding="utf-8")
    settings = os.environ.get(SETTINGS_VARIABLE)
    if settings is None:
        settings = str(into / "ivysettings.xml")
        Path(settings).write_text(_settings(descriptors=transitive), encoding="utf-8")
    command = _command(Path(settings), into)
    for attempt in range(1, _ATTEMPTS + 1):
        status, output = _run(command, fetched)
        if status == 0:
            break
        if attempt == _ATTEMPTS:
            raise ResolutionFailed(len(coordinates), _what_ivy_said(status, output))
    found = {_coordinate_of(path): path for path in (into / "jars").glob("*/*/*.jar")}
    missing = [str(each) for each in coordinates if each not in found]
    if missing:
        raise ResolutionFailed(len(coordinates), f"it did not bring {', '.join(missing)}")
    return found


def _coordinate_of(path: Path) -> Coordinate:
    return Coordinate(path.parts[-3], path.parts[-2], path.stem)


def _module(coordinates: Sequence[Coordinate], *, transitive: bool) -> str:
    lines = [
        f"    <dependency org={quoteattr(each.group)} name={quoteattr(each.artifact)}"
        f' rev={quoteattr(each.version)} conf="default->default"'
        f' transitive="{str(transitive).lower()}"/>'
        for each in coordinates
    ]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '  <info organisation="headrace" module="jars"/>',
            '  <configurations><conf name="default"/></configurations>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>",
            "",
        ]
    )


def _settings(*, descriptors: bool) -> str:
    # Without the POMs only the jars themselves are asked for: 5 s instead of 29 for the
    # broker's. Ivy's own check sums are weaker than the lock's and cost a request each.
    poms = str(descriptors).lower()
    return (
        '<ivysettings>\n  <settings defaultResolver="central"/>\n  <resolvers>\n'
        f'    <ibiblio name="central" m2compatible="true" usepoms="{poms}"'
        ' useMavenMetadata="false" checksums=""/>\n'
        "  </resolvers>\n</ivysettings>\n"
    )


def _command(settings: Path, into: Path) -> list[str]:
    arguments = ["-settings", settings, "-ivy", into / "ivy.xml", "-cache", into / "cache"]
    arguments += ["-confs", "default"]
    arguments += ["-retrieve", into / "jars/[organisation]/[artifact]/[revision].[ext]"]
    return java_command(
        find_java(),
        "org.apache.ivy.Main",
        pyspark_jars("ivy"),
        heap_mb=256,
        flags=("-XX:TieredStopAtLevel=1",),
        arguments=[str(each) for each in arguments],
    )


def _run(command: list[str], fetched: Fetched | None) -> tuple[int, list[str]]:
    """Run Ivy to its end and return its exit status and its last lines."""
    tail: deque[str] = deque(maxlen=200)
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        deadline = threading.Timer(_DEADLINE_SECONDS, process.kill)
        deadline.start()
        try:
            for raw in process.stdout or ():
                line = raw.strip()
                tail.append(line)
                coordinate = _announced(line)
                if fetched is not None and coordinate is not None:
                    fetched(coordinate)
            status = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            deadline.cancel()
    return status, list(tail)


def _announced(line: str) -> Coordinate | None:
    """Read a line such as `[SUCCESSFUL ] io.delta#delta-storage;4.4.0!delta-storage.jar (1ms)`."""
    start = line.find(_DONE)
    if start < 0 or ".jar" not in line:
        return None
    group, _, rest = line[start + len(_DONE) :].strip().partition("#")
    artifact, _, rest = rest.partition(";")
    return Coordinate(group, artifact, rest.partition("!")[0])


def _what_ivy_said(status: int, output: list[str]) -> str:
    telling = [line for line in output if any(word in line.lower() for word in _TELLING)]
    lines = dict.fromkeys(telling or [line for line in output if line])
    said = "; ".join(list(lines)[-_SAID_LINES:])
    return f"exit status {status}: {said or 'it said nothing'}"
