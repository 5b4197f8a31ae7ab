"""Servers that all workers of a test run share: the first worker to need one starts it."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from examples.support.postgres_server import EmbeddedPostgres
from service.devservers.process import EmbeddedServer, connects

S = TypeVar("S", bound=EmbeddedServer)
_POLL_SECONDS = 0.1


@contextmanager
def opened(server: Any) -> Iterator[Any]:
    """Of what is started and stopped: one server, or several."""
    try:
        server.open()
        yield server
    finally:
        server.close()


@contextmanager
def shared_by_workers(folder: Path, make: Callable[[Path], S]) -> Iterator[S]:
    """Start the server that lives in `folder`, or attach to the one another worker started.

    An attached server has an address; it cannot be killed or frozen. The worker that started
    the server closes it once no worker is attached. One that has ended with its worker is
    started again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started = folder / "started"
    server = make(folder / "server")
    with (folder / "gate").open("w") as gate, (folder / "users").open("w") as users:
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            server._ports = server._stored_ports() if started.exists() else ()
            is_ours = not (server._ports and connects(server.port))
            if is_ours:
                server.open()
                started.touch()
            fcntl.flock(users, fcntl.LOCK_SH)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield server
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            while is_ours and not _closed(server, gate, users, started):
                time.sleep(_POLL_SECONDS)


def _closed(server: EmbeddedServer, gate: IO[str], users: IO[str], started: Path) -> bool:
    """Close the server if no worker is attached, and keep others from attaching meanwhile."""
    fcntl.flock(gate, fcntl.LOCK_EX)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        started.unlink()
        server.close()
        if isinstance(server, EmbeddedPostgres):
            server.remove_data()
    except BlockingIOError:
        return False
    finally:
        fcntl.flock(gate, fcntl.LOCK_UN)
    return True
