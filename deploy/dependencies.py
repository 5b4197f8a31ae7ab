"""What Headrace is made of: every locked package and jar, with its hashes and its licence.

The versions and hashes are the locks'. Python packages tell their licence themselves; a jar's is
told here, by its group, since jars seldom do.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal, TypeAlias

from packaging.markers import Marker

from service.jars.lock import Lock, read_lock

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = {
    "slim": ROOT / "requirements/run.lock",
    "spark": ROOT / "requirements/spark.lock",
}
IMAGE_SETS = ("delta", "iceberg", "s3a")  # of jars, as the Dockerfile has them

ALLOWED = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "LGPL-3.0-only",
        "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "PostgreSQL", "Zlib",
    }
)  # fmt: skip
"""Licences under which a dependency may be used and passed on; another needs a decision."""

_LINE = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\\n]+))?", re.MULTILINE
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_LONGEST = 100  # else it is the licence's text
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
# What packages say that is no SPDX expression.
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
# Where a package says less than its own licence file does.
_READ = {
    "py4j": "BSD-3-Clause",
    "python-dateutil": "Apache-2.0 AND BSD-3-Clause",  # by the age of a contribution
    "uvloop": "MIT OR Apache-2.0",
}
_JARS = {
    "com.github.luben": "BSD-2-Clause",
    "com.google.re2j": "BSD-3-Clause",
    "io.zonky.test.postgres": "PostgreSQL",
    "net.sf.jopt-simple": "MIT",
    "net.sourceforge.argparse4j": "MIT",
    "org.hdrhistogram": "CC0-1.0 OR BSD-2-Clause",
    "org.pcollections": "MIT",
    "org.postgresql": "BSD-2-Clause",
    "org.reactivestreams": "MIT-0",
    "org.slf4j": "MIT",
}
_APACHE = (
    "com.dynatrace.hash4j", "com.fasterxml.jackson", "com.github.ben-manes.caffeine",
    "com.typesafe.scala-logging", "com.yammer.metrics", "commons-", "io.delta", "org.apache.",
    "org.bitbucket.b_c", "org.jspecify", "org.lz4", "org.scala-lang", "org.xerial.snappy",
    "org.yaml", "software.amazon.",
)  # fmt: skip


Image: TypeAlias = Literal["slim", "spark"]
"""Without Spark and Java, or with them; this one has all that the other has."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A package or a jar; `hashes` are the SHA-256 of the files, one of which is installed."""

    kind: Literal["python", "jar"]
    group: str  # "" for a package
    name: str
    version: str
    licence: str  # an SPDX expression
    hashes: tuple[str, ...]
    image: Image | None  # the smaller one that has it, or None: it is for development only


def dependencies() -> list[Dependency]:
    """All of them, sorted. Raises LookupError for one whose licence is not known."""
    found = [*_packages("slim"), *_packages("spark"), *_jars(read_lock())]
    return sorted(found, key=lambda each: (each.kind, each.group, each.name, each.hashes))


def _packages(image: Image) -> Iterator[Dependency]:
    """Those that are installed on Linux; the lock is for other systems, too."""
    lock = REQUIREMENTS[image].read_text(encoding="utf-8")
    starts = list(_LINE.finditer(lock))
    ends = [each.start() for each in starts[1:]] + [len(lock)]
    for found, end in zip(starts, ends, strict=True):
        marker = found["marker"]
        if marker is not None and not Marker(marker.strip()).evaluate(_LINUX):
            continue
        hashes = tuple(_HASH.findall(lock, found.end(), end))
        name = found["name"]
        yield Dependency("python", "", name, found["version"], _licence_of(name), hashes, image)


def _licence_of(name: str) -> str:
    told = distribution(name).metadata
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in told.get_all("Classifier") or []
        if each.startswith("License ::")
    ]
    found = (_READ.get(name), told.get("License-Expression"), told.get("License"), *classifiers)
    for each in found:
        if each and len(each) < _LONGEST:
            return _SPDX.get(each, each)
    raise LookupError(f"package {name} does not tell its licence; allowed are {sorted(ALLOWED)}")


def _jars(lock: Lock) -> Iterator[Dependency]:
    for jar in lock.jars:
        group, artifact, version = jar.coordinate
        licence = "Apache-2.0" if group.startswith(_APACHE) else _JARS.get(group)
        if licence is None:
            raise LookupError(f"the licence of jar {jar.coordinate} is not told in {__name__}")
        image: Image | None = "spark" if jar.set_name in IMAGE_SETS else None
        yield Dependency("jar", group, artifact, version, licence, (jar.sha256,), image)
