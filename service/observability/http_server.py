"""/metrics, /health/live, /health/ready and /health/startup, and the status page, on one port."""

import errno
import json
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import structlog

from service.errors import AddressInUse
from service.observability.health import Health, HealthCheck
from service.observability.metrics import CONTENT_TYPE, Metrics
from service.observability.status_page import CONTENT_SECURITY, StatusPage, page_files
from topology.masking import mask

log = structlog.get_logger()

REQUEST_SECONDS = 5.0  # from connecting to the last byte
MOST_CONNECTIONS = 64
_CHECK_SECONDS = 0.25
_WARN_SECONDS = 10.0

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Answer = tuple[HTTPStatus, str, bytes]
Routes = dict[str, Callable[[], Answer]]


class HttpServer:
    """Answers scrapes and probes on its own threads, from snapshots only."""

    def __init__(
        self, host: str, port: int, metrics: Metrics, health: HealthCheck, page: StatusPage
    ) -> None:
        self._host = host
        self._port = port
        self._routes: Routes = {
            "/": lambda: _found("text/html; charset=utf-8", page.html()),
            **{path: partial(_found, kind, body) for path, (kind, body) in page_files().items()},
            "/metrics": lambda: _found(CONTENT_TYPE, metrics.exposition()),
            "/health/live": lambda: _verdict(health.live()),
            "/health/startup": lambda: _verdict(health.startup()),
            "/health/ready": lambda: _verdict(health.ready()),
            "/status.json": lambda: _found("application/json", page.json()),
            "/history.json": lambda: _found("application/json", page.history_json()),
        }
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        return self._server.server_address[1] if self._server is not None else self._port

    def open(self) -> None:
        """Listen. Raises AddressInUse when the address cannot be had."""

        class Handler(_Handler):
            routes = self._routes

        try:
            self._server = _Server((self._host, self._port), Handler)
        except OSError as error:
            reason = error.strerror or str(error)
            raise AddressInUse(self._host, self._port, reason) from error
        threading.Thread(
            target=self._server.serve_forever,
            args=(_CHECK_SECONDS,),
            name="headrace-http",
            daemon=True,
        ).start()
        log.info("http_listening", host=self._host, port=self.port)

    def close(self) -> None:
        """Stop listening. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    """One short thread per request; slow clients, and the oldest of a crowd, are cut off.

    So a client that sends or reads a byte now and then holds back nobody else. One descriptor is
    kept in reserve: when the process has no other left, clients are answered one by one.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._since: dict[socket.socket, float] = {}  # in the order they came
        self._guard = threading.Lock()  # of the connections
        self._spare: int | None = None
        self._warned_at = -_WARN_SECONDS
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind, without asking a name server for our name as the base class does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> tuple[Any, Any]:
        """Accept a client. Raises OSError when that cannot be done now."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            now = time.monotonic()
            if now - self._warned_at >= _WARN_SECONDS:
                self._warned_at = now
                log.warning("descriptors_exhausted", error=error.strerror)
            if self._spare is None:
                # The client still waits, so the server would be back at once, and again.
                time.sleep(_CHECK_SECONDS)
                raise
            self._free_spare()
            return super().get_request()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off who takes too long; called behind each request, and every `_CHECK_SECONDS`."""
        if self._spare is None:
            with suppress(OSError):  # there is none now
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        longest_ago = time.monotonic() - REQUEST_SECONDS
        with self._guard:
            clients = list(self._since.items())
        late = [client for client, since in clients if since < longest_ago]
        for each in {*late, *(client for client, _ in clients[:-MOST_CONNECTIONS])}:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads or writes it

    def server_close(self) -> None:
        super().server_close()
        self._free_spare()

    def _free_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet: clients go away as they please."""
        del request
        log.debug("http_request_failed", client=client_address[0], error=repr(sys.exception()))


class _Handler(BaseHTTPRequestHandler):
    routes: Routes
    timeout = REQUEST_SECONDS
    server_version = "headrace"
    sys_version = ""

    def do_GET(self) -> None:  # the base class calls it so
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        answer = None
        with suppress(ValueError):  # the target is no path
            answer = self.routes.get(urlsplit(self.path).path)
        if answer is None:
            body = f"allowed: {', '.join(self.routes)}\n".encode()
            status, kind = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8"
        else:
            status, kind, body = answer()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        log.debug("http_request", line=format % args)


def _found(kind: str, body: bytes) -> Answer:
    return HTTPStatus.OK, kind, body


def _verdict(health: Health) -> Answer:
    status = HTTPStatus.OK if health.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "application/json", mask(json.dumps(asdict(health)) + "\n").encode()
