"""Jars of a set as local files: from the cache of this machine, else fetched, always checked."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from service.jars.errors import JarMismatch
from service.jars.ivy import fetch
from service.jars.lock import Coordinate, Lock, LockedJar, read_lock

CACHE_VARIABLE = "HEADRACE_JAR_CACHE"

Progress = Callable[[str, int, int], None]

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
    Raises UnknownSet, JarMismatch, ResolutionFailed, and JavaMissing when Java is needed
    to fetch something and is not there.
    """
    members = (lock or read_lock()).members(set_name)
    folder = (default_cache() if cache is None else cache).absolute()
    missing = _missing(members, folder)
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder / ".lock"):
            missing = _missing(members, folder)  # another process may have fetched them
            if missing:
                _fetch(set_name, missing, folder, len(members), progress)
    paths = [folder / jar.coordinate.relative_path for jar in members]
    for jar, path in zip(members, paths, strict=True):
        check(jar, path)
    return paths


def check(jar: LockedJar, path: Path) -> None:
    """Compare a file with the lock; a file that differs is removed. Raises JarMismatch."""
    found = sha256_of(path)
    if found != jar.sha256:
        path.unlink(missing_ok=True)
        raise JarMismatch(str(jar.coordinate), jar.sha256, found, path)


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _missing(members: tuple[LockedJar, ...], folder: Path) -> list[LockedJar]:
    return [jar for jar in members if not (folder / jar.coordinate.relative_path).is_file()]


def _fetch(
    set_name: str, missing: list[LockedJar], folder: Path, total: int, progress: Progress | None
) -> None:
    started = time.monotonic()
    done = total - len(missing)
    _log.info("jars_fetching", set=set_name, missing=len(missing), total=total, cache=str(folder))

    def count(coordinate: Coordinate) -> None:
        nonlocal done
        done = min(done + 1, total)  # a second attempt announces nothing twice, but be sure
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
