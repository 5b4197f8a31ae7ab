"""Names that resolve for one process alone, as long as the test likes: a mount namespace."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ENTER = 'mount --bind "$0" /etc/hosts && mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'


class Names:
    """A file of hosts, and no name server that answers. Needs root, and `unshare` of util-linux."""

    def __init__(self, folder: Path, *names: str) -> None:
        self._hosts = folder / "hosts"
        self._servers = folder / "resolv.conf"
        self._names = names

    def open(self) -> None:
        """Have the names resolve, to 127.0.0.1. What is mounted is the same file always."""
        self._hosts.write_text(
            "".join(f"127.0.0.1 {name}\n" for name in ("localhost", *self._names))
        )
        self._servers.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")

    def close(self) -> None:
        """Have them resolve no more."""
        self._hosts.write_text("127.0.0.1 localhost\n")

    def launch(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a process to which these names are known, as `subprocess.Popen` would."""
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER]
        return subprocess.Popen([*enter, str(self._hosts), str(self._servers), *command], **options)
