"""What can go wrong with a server that this process starts for itself."""

from pathlib import Path


class EmbeddedError(Exception):
    """A server on this machine could not be run."""


class JavaMissing(EmbeddedError):
    """Java of a usable version was not found."""

    def __init__(self, needed: int, found: str) -> None:
        super().__init__(
            f"Java {needed} or newer is needed: {found}. "
            "Install it, or set JAVA_HOME to an installation"
        )
        self.needed = needed
        self.found = found


class SparkJarsMissing(EmbeddedError):
    """A jar that PySpark ships was not found."""


class PostgresMissing(EmbeddedError):
    """PostgreSQL's server cannot be had on this machine."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"PostgreSQL's server is needed: {found}. Install it: Debian's package is 'postgresql'"
        )
        self.found = found


class PortTaken(EmbeddedError):
    """A port that a server must use belongs to another process."""

    def __init__(self, server: str, ports: tuple[int, ...], log: Path) -> None:
        listed = ", ".join(str(port) for port in ports)
        super().__init__(
            f"{server} needs port(s) {listed} on 127.0.0.1, which are taken; see {log}"
        )
        self.server = server
        self.ports = ports
        self.log = log


class ServerFailed(EmbeddedError):
    """A server ended, or did not answer, while it was being started."""

    def __init__(self, server: str, what: str, log: Path, tail: str) -> None:
        super().__init__(f"{server} {what}; the end of {log}:\n{tail or '(nothing)'}")
        self.server = server
        self.what = what
        self.log = log
        self.tail = tail


class StateDirInUse(EmbeddedError):
    """Another living process runs a server in this state directory."""

    def __init__(self, server: str, state_dir: Path, pid: int, owner: int) -> None:
        super().__init__(
            f"{state_dir} belongs to a running {server} (process {pid}) of process {owner}; "
            "stop that one, or use another directory"
        )
        self.server = server
        self.state_dir = state_dir
        self.pid = pid
        self.owner = owner


class NotRunning(EmbeddedError):
    """The server is not running; open it first."""

    def __init__(self, server: str) -> None:
        super().__init__(f"{server} is not running; open it first")
        self.server = server
