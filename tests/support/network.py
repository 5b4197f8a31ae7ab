"""A relay in front of a server that is slow, or falls silent."""

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
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar

_BYTES = 65536
_Waiting: TypeAlias = "queue.SimpleQueue[tuple[float, bytes]]"  # each with when it is due


class Relay:
    """Passes bytes on to a server of this host, each `delay` seconds after they came.

    However much is on its way, nothing waits for what was sent before it: it is slow, not narrow.
    The delay is of one direction, and may be changed at any time.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self._target = port
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection that there is; new ones are taken."""
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        """Pass everything on both ways, until either end is closed."""
        threads = []
        for source, sink in ((near, far), (far, near)):
            waiting: _Waiting = queue.SimpleQueue()
            threads += [
                threading.Thread(target=self._take, args=(source, waiting), daemon=True),
                threading.Thread(target=self._give, args=(sink, waiting), daemon=True),
            ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        near.close()
        far.close()

    def _take(self, source: socket.socket, waiting: _Waiting) -> None:
        data = b"more"
        while data:
            try:
                data = source.recv(_BYTES)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + self.delay, data))

    def _give(self, sink: socket.socket, waiting: _Waiting) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


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
