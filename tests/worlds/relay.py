"""A relay in front of a server that is slow, or falls silent."""

import contextlib
import queue
import socket
import threading
import time
from typing import TypeAlias

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
