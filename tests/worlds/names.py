"""Host names that a process can resolve, or cannot any more: hosts of its own. Needs root."""

from collections.abc import Sequence
from pathlib import Path

_MOUNT = (
    'mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/resolv.conf && shift 2 && exec "$@"'
)


class Names:
    """Names that lead to 127.0.0.1, as long as they are known; no other name server is asked."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._hosts = folder / "hosts"
        self._resolver = folder / "resolv.conf"
        self._names = names
        self._resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self.forget()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command that is to have them; the process stays the same."""
        mount = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh")
        return (*mount, str(self._hosts), str(self._resolver))

    def know(self) -> None:
        """Let them lead to 127.0.0.1."""
        self._hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in self._names))

    def forget(self) -> None:
        self._hosts.write_text("")
