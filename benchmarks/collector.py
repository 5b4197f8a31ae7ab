"""python -m benchmarks.collector: takes spans over HTTP in a process of its own, and counts them.

It prints its endpoint first. What comes is only kept until standard input ends, so that it takes
little processor time from what is measured; then the number of spans is printed.
"""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

_SECONDS = 30


class Collector:
    """The process. After `with`, `spans` tells how many have arrived."""

    def __init__(self) -> None:
        self.spans = 0
        self.endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.collector"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout is not None:
            self.endpoint = self._process.stdout.readline().strip()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            said, _ = self._process.communicate(timeout=_SECONDS)
            self.spans = int(said)


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base
        """Say nothing."""


def main() -> None:
    """Serve until standard input ends."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceRequest,
    )

    server = _Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}/v1/traces", flush=True)
    sys.stdin.read()
    server.shutdown()
    requests = map(ExportTraceServiceRequest.FromString, server.bodies)
    print(sum(len(s.spans) for r in requests for t in r.resource_spans for s in t.scope_spans))


if __name__ == "__main__":
    main()
