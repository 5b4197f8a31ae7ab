"""Jars of a set as local files: from the cache of this machine, else fetched, always checked.

Ivy, Spark's own resolver, fetches them, run by itself from PySpark's jars: a machine that can run
Spark has everything this needs. Ivy's built-in default repository is used unless
HEADRACE_IVY_SETTINGS names an ivysettings file (a mirror, a proxy with a password).
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import structlog

from service.devservers.java import java_command, pyspark_jars
from service.jars.lock import Coordinate, JarError, Lock, LockedJar, read_lock

CACHE_VARIABLE = "HEADRACE_JAR_CACHE"
SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"
_DEADLINE_SECONDS = 900.0
_ATTEMPTS = 2  # one dropped connection must not end a first start
# Such as "[SUCCESSFUL ] io.delta#delta-storage;4.4.0!delta-storage.jar (1ms)".
_FETCHED = re.compile(r"\[SUCCESSFUL \]\s*(.+?)#(.+?);(.+?)!.*\.jar")
_TELLING = ("not found", "unresolved", "error", "exception", "failed", "timed out", "refused")
_SAID_LINES = 6

Progress = Callable[[str, int, int], None]
Fetched = Callable[[Coordinate], None]

_log = structlog.get_logger()


def default_cache() -> Path:
    """Return the cache of this machine: HEADRACE_JAR_CACHE, else the user's cache directory."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace" / "jars"


def resolve(
    set_name: str,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    lock: Lock | None = None,
) -> list[Path]:
    """Return the local path of every jar of a set, in the lock's order.

    What the cache lacks is fetched; every file's SHA-256 is compared with the lock on
    every call. `progress` is called with a coordinate, the jars at hand and the jars of
    the set, as each one arrives. Several processes may call this at once on one cache.
    Raises JarError, and JavaMissing when Java is needed to fetch something and is not there.
    """
    members = (lock or read_lock()).members(set_name)
    folder = (default_cache() if cache is None else cache).absolute()
    missing = _missing(members, folder)
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder / ".lock"):
            missing = _missing(members, folder)  # another process may have fetched them
            if missing:
                _fetch_missing(set_name, missing, folder, len(members), progress)
    paths = [folder / jar.coordinate.relative_path for jar in members]
    for jar, path in zip(members, paths, strict=True):
        check(jar, path)
    return paths


def check(jar: LockedJar, path: Path) -> None:
    """Compare a file with the lock; a file that differs is removed. Raises JarError."""
    found = sha256_of(path)
    if found != jar.sha256:
        path.unlink(missing_ok=True)
        raise JarError(
            f"{jar.coordinate} has SHA-256 {found}, the lock file expects {jar.sha256}; "
            f"removed {path}"
        )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _missing(members: Sequence[LockedJar], folder: Path) -> list[LockedJar]:
    return [jar for jar in members if not (folder / jar.coordinate.relative_path).is_file()]


def _fetch_missing(
    set_name: str, missing: list[LockedJar], folder: Path, total: int, progress: Progress | None
) -> None:
    started = time.monotonic()
    done = total - len(missing)
    _log.info("jars_fetching", set=set_name, missing=len(missing), total=total, cache=str(folder))

    def count(coordinate: Coordinate) -> None:
        nonlocal done
        done = min(done + 1, total)
        if progress is not None:
            progress(str(coordinate), done, total)

    # Beside the jars, so that a rename within one file system puts each in its place whole.
    staging = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        found = fetch([jar.coordinate for jar in missing], staging, fetched=count)
        for jar in missing:
            path = found[jar.coordinate]
            check(jar, path)
            target = folder / jar.coordinate.relative_path
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    seconds = round(time.monotonic() - started, 3)
    _log.info("jars_fetched", set=set_name, fetched=len(missing), seconds=seconds)


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a file's lock; the system releases it when the process ends in any way."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("jars_waiting_for_another_process", lock=str(path))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetch(
    coordinates: Sequence[Coordinate],
    into: Path,
    *,
    transitive: bool = False,
    fetched: Fetched | None = None,
) -> dict[Coordinate, Path]:
    """Fetch jars into a directory and return the path of each one.

    `into` is on the file system the jars shall be renamed within. `fetched` is called on the
    calling thread as each jar arrives. With `transitive` the run-time dependencies come
    along, one version of each. Raises JarError.
    """
    into.mkdir(parents=True, exist_ok=True)
    (into / "ivy.xml").write_text(_module(coordinates, transitive=transitive), encoding="utf-8")
    settings = os.environ.get(SETTINGS_VARIABLE)
    if settings is None:
        settings = str(into / "ivysettings.xml")
        # Without the POMs only the jars themselves are asked for: 5 s instead of 29 for the
        # broker's. Ivy's own check sums are weaker than the lock's and cost a request each.
        Path(settings).write_text(
            '<ivysettings>\n  <settings defaultResolver="central"/>\n  <resolvers>\n'
            f'    <ibiblio name="central" m2compatible="true" usepoms="{str(transitive).lower()}"'
            ' useMavenMetadata="false" checksums=""/>\n'
            "  </resolvers>\n</ivysettings>\n",
            encoding="utf-8",
        )
    jars = into / "jars"
    arguments: list[object] = [
        "-settings",
        settings,
        "-ivy",
        into / "ivy.xml",
        "-cache",
        into / "cache",
    ]
    arguments += ["-confs", "default"]
    arguments += ["-retrieve", jars / "[organisation]/[artifact]/[revision].[ext]"]
    command = java_command("org.apache.ivy.Main", pyspark_jars("ivy"), arguments, heap_mb=256)
    failed = f"Ivy could not fetch {len(coordinates)} jar(s)"
    for attempt in range(1, _ATTEMPTS + 1):
        status, output = _run(command, fetched)
        if status == 0:
            break
        if attempt == _ATTEMPTS:
            telling = [line for line in output if any(word in line.lower() for word in _TELLING)]
            lines = dict.fromkeys(telling or [line for line in output if line])
            said = "; ".join(list(lines)[-_SAID_LINES:]) or "it printed nothing"
            raise JarError(f"{failed}: exit status {status}: {said}")
    found = {
        Coordinate(path.parts[-3], path.parts[-2], path.stem): path
        for path in jars.glob("*/*/*.jar")
    }
    missing = [str(each) for each in coordinates if each not in found]
    if missing:
        raise JarError(f"{failed}: it did not bring {', '.join(missing)}")
    return found


def _module(coordinates: Sequence[Coordinate], *, transitive: bool) -> str:
    lines = [
        f"    <dependency org={quoteattr(each.group)} name={quoteattr(each.artifact)}"
        f' rev={quoteattr(each.version)} conf="default->default"'
        f' transitive="{str(transitive).lower()}"/>\n'
        for each in coordinates
    ]
    return (
        '<ivy-module version="2.0">\n  <info organisation="headrace" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{''.join(lines)}  </dependencies>\n</ivy-module>\n"
    )


def _run(command: list[str], fetched: Fetched | None) -> tuple[int, list[str]]:
    """Run Ivy to its end and return its exit status and its last lines."""
    tail: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        deadline = threading.Timer(_DEADLINE_SECONDS, process.kill)
        deadline.start()
        try:
            for raw in process.stdout or ():
                tail.append(raw.strip())
                if fetched is not None and (found := _FETCHED.search(raw)):
                    fetched(Coordinate(*found.groups()))
            status = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            deadline.cancel()
    return status, list(tail)
