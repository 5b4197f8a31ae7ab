"""The lock file: which Java archives belong to which set, and the SHA-256 of each.

One line per archive and set, sorted: `group:artifact:version sha256:<hex> <set>`. It
holds no address: where a coordinate is found is the resolver's business.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from service.jars.errors import LockMalformed, UnknownSet

LOCK_FILE = Path(__file__).with_name("jars.lock")

_LINE = re.compile(
    r"(?P<group>[\w.-]+):(?P<artifact>[\w.-]+):(?P<version>[\w.+-]+)"
    r" sha256:(?P<sha256>[0-9a-f]{64}) (?P<set>[a-z][a-z0-9-]*)",
    re.ASCII,
)


class Coordinate(NamedTuple):
    """A Maven coordinate of a plain jar."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def relative_path(self) -> Path:
        """Where the jar lies below the cache: unique, and named as Maven names it."""
        return Path(self.group) / f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True, order=True)
class LockedJar:
    """One line of the lock file."""

    coordinate: Coordinate
    sha256: str
    set_name: str

    def __str__(self) -> str:
        return f"{self.coordinate} sha256:{self.sha256} {self.set_name}"


@dataclass(frozen=True, slots=True)
class Lock:
    """The whole lock file, sorted by set and coordinate."""

    jars: tuple[LockedJar, ...]

    @property
    def set_names(self) -> tuple[str, ...]:
        """The sets that exist, sorted."""
        return tuple(sorted({jar.set_name for jar in self.jars}))

    def members(self, set_name: str) -> tuple[LockedJar, ...]:
        """Return the jars of one set. Raises UnknownSet."""
        found = tuple(jar for jar in self.jars if jar.set_name == set_name)
        if not found:
            raise UnknownSet(set_name, self.set_names)
        return found

    def render(self) -> str:
        """Return the lock file's text."""
        return "".join(f"{jar}\n" for jar in self.jars)


def make_lock(jars: Iterable[LockedJar]) -> Lock:
    """Return a lock with its lines in the order of the file."""
    return Lock(tuple(sorted(jars, key=lambda jar: (jar.set_name, jar.coordinate))))


def parse_lock(text: str, *, place: str = "jars.lock") -> Lock:
    """Read a lock file's text; blank lines and `#` comments are allowed. Raises LockMalformed."""
    jars = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise LockMalformed(f"{place}:{number}", line)
        coordinate = Coordinate(match["group"], match["artifact"], match["version"])
        jars.append(LockedJar(coordinate, match["sha256"], match["set"]))
    return make_lock(jars)


def read_lock(path: Path = LOCK_FILE) -> Lock:
    """Read a lock file, by default the one that ships with Headrace. Raises LockMalformed."""
    return parse_lock(path.read_text(encoding="utf-8"), place=str(path))
