"""A network of its own for a process, from which some ports lead out, and may be cut. Needs root.

In it 127.0.0.1 is another machine's: a relay listens there on the ports of the test's servers. A
cut is a rule of the kernel's filter, so packets vanish and no connection is reset.
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar

Way: TypeAlias = Literal["both", "requests", "replies"]
T = TypeVar("T")

_HOST = "127.0.0.1"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SIZE = 65_536
_libc = ctypes.CDLL(None, use_errno=True)


class Apart:
    """A network namespace that lasts as long as the `with`."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._name = f"headrace-{uuid.uuid4().hex[:8]}"
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        """Make it. Raises CalledProcessError, as where the user is not root."""
        _run("ip", "netns", "add", self._name)
        try:
            self._inside("ip", "link", "set", "lo", "up")
            for port in self._ports:
                listening = self.call(lambda port=port: socket.create_server((_HOST, port)))
                self._open.append(listening)
                _start(self._accept, listening, port)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave nothing behind; processes that are there go on without a network."""
        for each in self._open:
            _close(each)
        _run("ip", "netns", "del", self._name)

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command that is to run in it; the process stays the same."""
        return ("ip", "netns", "exec", self._name)

    def cut(self, way: Way, *ports: int) -> None:
        """Let what goes to these ports, or comes from them, or both, vanish from now on."""
        for port in ports:
            for side, of in (("--dport", "requests"), ("--sport", "replies")):
                if way in ("both", of):
                    rule = ("-p", "tcp", side, str(port), "-j", "DROP")
                    self._inside("iptables", "-w", "-A", "INPUT", *rule)

    def heal(self) -> None:
        self._inside("iptables", "-w", "-F", "INPUT")

    def call(self, does: Callable[[], T]) -> T:
        """Call something on a thread that is in it; what it opens belongs there."""
        found: list[T] = []
        thread = threading.Thread(target=lambda: found.append(self._entered(does)))
        thread.start()
        thread.join()
        return found[0]

    def _entered(self, does: Callable[[], T]) -> T:
        place = os.open(f"/var/run/netns/{self._name}", os.O_RDONLY)
        try:
            if _libc.setns(place, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(place)
        return does()

    def _inside(self, *command: str) -> None:
        _run(*self.prefix, *command)

    def _accept(self, listening: socket.socket, port: int) -> None:
        """Join each connection with one of the outer network."""
        while True:
            try:
                inner, _ = listening.accept()
            except OSError:  # closed
                return
            try:
                outer = socket.create_connection((_HOST, port))
            except OSError:  # nobody listens there either
                inner.close()
                continue
            self._open += [inner, outer]
            _start(_pump, inner, outer)
            _start(_pump, outer, inner)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_SIZE):
            target.sendall(data)
    _close(source)
    _close(target)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
    end.close()


def _start(does: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=does, args=arguments, name="relay", daemon=True).start()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
