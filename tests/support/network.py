"""Relays in front of servers that are slow, deaf or cut off, and networks apart."""

import contextlib
import ctypes
import os
import queue
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from typing import Literal, Self, TypeAlias, TypeVar

from tests.support.patience import seconds

_HOST = "127.0.0.1"
_BYTES = 65_536
_DEAF_SECONDS = seconds(30.0)
_Waiting: TypeAlias = "queue.SimpleQueue[tuple[float, bytes]]"  # each with when it is due


class Relay:
    """Passes bytes on to a server of this host, each `delay` seconds after they came.

    However much is on its way, nothing waits for what was sent before it: it is slow, not narrow.
    The delay is of one direction, and may be changed at any time. While `hears` is cleared no byte
    passes either way, and no connection ends. `lose_replies` drops the server's next answer, then
    the connection, and sets `lost`.
    """

    def __init__(self, port: int, listener: socket.socket | None = None) -> None:
        self.delay = 0.0
        self.lose_replies = False
        self.lost, self.hears = threading.Event(), threading.Event()
        self.hears.set()
        self._target = port
        self._ends: list[socket.socket] = []
        self._listener = listener or socket.create_server((_HOST, 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"{_HOST}:{self.port}"
        _start(self._accept)

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            _shut(end)

    def close(self) -> None:
        self.hears.set()
        _shut(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection((_HOST, self._target))
                except OSError:  # nobody listens there
                    near.close()
                    continue
                self._ends += [near, far]
                _start(self._serve, near, far)

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        """Pass everything on both ways, until either end is closed."""
        there, back = queue.SimpleQueue(), queue.SimpleQueue()
        threads = [
            _start(self._take, near, there, "requests"),
            _start(self._give, far, there),
            _start(self._take, far, back, "replies"),
            _start(self._give, near, back),
        ]
        for thread in threads:
            thread.join()
        near.close()
        far.close()

    def _take(self, source: socket.socket, waiting: _Waiting, of: str) -> None:
        data = b"more"
        while data:
            try:
                data = source.recv(_BYTES)
            except OSError:
                data = b""
            self.hears.wait(_DEAF_SECONDS)
            if data and of == "replies" and self.lose_replies:
                self.lose_replies = False
                self.lost.set()
                data = b""
                _shut(source)
            waiting.put((time.monotonic() + self.delay, data))

    def _give(self, sink: socket.socket, waiting: _Waiting) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                sink.sendall(data)
        _shut(sink)


Way: TypeAlias = Literal["both", "requests", "replies"]
T = TypeVar("T")

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_libc = ctypes.CDLL(None, use_errno=True)


class Apart:
    """A network namespace, from which some ports of this host can be reached. Needs root."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._name = f"headrace-{uuid.uuid4().hex[:8]}"
        self._relays: list[Relay] = []

    def __enter__(self) -> Self:
        """Make it. Raises CalledProcessError, as where the user is not root."""
        _run("ip", "netns", "add", self._name)
        try:
            _run(*self.prefix, "ip", "link", "set", "lo", "up")
            for port in self._ports:
                listening = self.call(lambda port=port: socket.create_server((_HOST, port)))
                self._relays.append(Relay(port, listening))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Leave nothing behind; processes that are there go on without a network."""
        for each in self._relays:
            each.close()
        _run("ip", "netns", "del", self._name)

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._name)

    def cut(self, way: Way, *ports: int) -> None:
        """Let what goes to these ports, or comes from them, or both, vanish from now on."""
        for port in ports:
            for side, of in (("--dport", "requests"), ("--sport", "replies")):
                if way in ("both", of):
                    rule = ("-p", "tcp", side, str(port), "-j", "DROP")
                    _run(*self.prefix, "iptables", "-w", "-A", "INPUT", *rule)

    def heal(self) -> None:
        _run(*self.prefix, "iptables", "-w", "-F", "INPUT")

    def call(self, does: Callable[[], T]) -> T:
        """Call something on a thread that is in it; what it opens belongs there."""
        found: list[T] = []

        def entered() -> None:
            place = os.open(f"/var/run/netns/{self._name}", os.O_RDONLY)
            try:
                if _libc.setns(place, _NEW_NETWORK):
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(place)
            found.append(does())

        _start(entered).join()
        return found[0]


def _start(does: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=does, args=arguments, name="relay", daemon=True)
    thread.start()
    return thread


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
