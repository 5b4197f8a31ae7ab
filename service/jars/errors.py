"""What can go wrong while Java archives are looked up, fetched and checked."""

from pathlib import Path


class JarError(Exception):
    """A Java archive cannot be provided."""


class LockMalformed(JarError):
    """The lock file of Java archives cannot be read."""

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"{place}: found {found!r}, expected 'group:artifact:version sha256:<64 hex> <set>'"
        )
        self.place = place
        self.found = found


class UnknownSet(JarError):
    """The lock file has no such set of Java archives."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no set of jars is called {name!r}; the lock file has {', '.join(known)}")
        self.name = name
        self.known = known


class JarMismatch(JarError):
    """A Java archive is not the one that was locked; it has been removed."""

    def __init__(self, coordinate: str, expected: str, found: str, path: Path) -> None:
        super().__init__(
            f"{coordinate} has SHA-256 {found}, the lock file expects {expected}; removed {path}"
        )
        self.coordinate = coordinate
        self.expected = expected
        self.found = found
        self.path = path


class ResolutionFailed(JarError):
    """Java archives could not be fetched."""

    def __init__(self, wanted: int, said: str) -> None:
        super().__init__(f"Ivy could not fetch {wanted} jar(s): {said}")
        self.wanted = wanted
        self.said = said
