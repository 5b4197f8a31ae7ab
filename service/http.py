"""/metrics, /health/live and /health/ready on one port."""

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog

from service.health import Health, HealthCheck
from service.metrics import CONTENT_TYPE, Metrics

log = structlog.get_logger()

_REQUEST_SECONDS = 5.0


class HttpServer:
    """Answers scrapes and probes on threads of its own, from snapshots only."""

    def __init__(self, host: str, port: int, metrics: Metrics, health: HealthCheck) -> None:
        self._host = host
        self._port = port
        self._metrics = metrics
        self._health = health
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port in use, once open."""
        return self._server.server_address[1] if self._server is not None else self._port

    def open(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        metrics, health = self._metrics, self._health

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_SECONDS  # a client that sends nothing does not hold a thread
            server_version = "headrace"
            sys_version = ""

            def do_GET(self) -> None:  # the base class calls it so
                if self.path == "/metrics":
                    self._answer(HTTPStatus.OK, CONTENT_TYPE, metrics.exposition())
                elif self.path == "/health/live":
                    self._verdict(health.live())
                elif self.path == "/health/ready":
                    self._verdict(health.ready())
                else:
                    paths = "allowed: /metrics, /health/live, /health/ready\n"
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", paths.encode())

            def _verdict(self, health: Health) -> None:
                status = HTTPStatus.OK if health.ok else HTTPStatus.SERVICE_UNAVAILABLE
                body = json.dumps({"ok": health.ok, "problems": health.problems}) + "\n"
                self._answer(status, "application/json", body.encode())

            def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                log.debug("http_request", line=format % args)

        self._server = ThreadingHTTPServer((self._host, self._port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="headrace-http", daemon=True
        )
        self._thread.start()
        log.info("http_listening", host=self._host, port=self.port)

    def close(self) -> None:
        """Stop listening. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
