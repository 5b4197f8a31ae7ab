"""The lock file: the Java archives of each set, with the SHA-256 of each; and errors of jars.

One line per archive and set, sorted: `group:artifact:version sha256:<hex> <set>`. It
holds no address: the resolver knows where a coordinate is found.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LOCK_FILE = Path(__file__).with_name("jars.lock")

_LINE = re.compile(
    r"(?P<group>[\w.-]+):(?P<artifact>[\w.-]+):(?P<version>[\w.+-]+)"
    r" sha256:(?P<sha256>[0-9a-f]{64}) (?P<set>[a-z][a-z0-9-]*)",
    re.ASCII,
)


class JarError(Exception):
    """A Java archive cannot be provided."""


class Coordinate(NamedTuple):
    """A Maven coordinate of a plain jar."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def relative_path(self) -> Path:
        """The jar's place below the cache: unique, and named as Maven names it."""
        return Path(self.group) / f"{self.artifact}-{self.version}.jar"


class LockedJar(NamedTuple):
    set_name: str
    coordinate: Coordinate
    sha256: str

    def __str__(self) -> str:
        return f"{self.coordinate} sha256:{self.sha256} {self.set_name}"


class Lock:
    """The whole lock file, sorted by set and coordinate."""

    def __init__(self, jars: Iterable[LockedJar]) -> None:
        self.jars = sorted(jars)
        self.set_names = sorted({jar.set_name for jar in self.jars})

    def __str__(self) -> str:
        return "".join(f"{jar}\n" for jar in self.jars)

    def members(self, set_name: str) -> list[LockedJar]:
        """Return the jars of one set. Raises JarError if there is none of this name."""
        if set_name not in self.set_names:
            known = ", ".join(self.set_names)
            raise JarError(f"unknown set of jars: found {set_name!r}, expected {known}")
        return [jar for jar in self.jars if jar.set_name == set_name]


def parse_lock(text: str, *, place: str = "jars.lock") -> Lock:
    """Read a lock file's text; blank lines and `#` comments are allowed. Raises JarError."""
    jars = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            form = "group:artifact:version sha256:<64 hex> <set>"
            raise JarError(f"{place}:{number}: found {line!r}, expected '{form}'")
        coordinate = Coordinate(match["group"], match["artifact"], match["version"])
        jars.append(LockedJar(match["set"], coordinate, match["sha256"]))
    return Lock(jars)


def read_lock() -> Lock:
    """Read the lock file that ships with Headrace. Raises JarError."""
    return parse_lock(LOCK_FILE.read_text(encoding="utf-8"))
