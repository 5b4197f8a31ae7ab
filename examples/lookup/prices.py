"""A price service to try the look-up on: it knows a few items, and counts what it is asked."""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

import orjson

ITEMS = {
    "nut": {"name": "Nut M8", "price": 0.1},
    "bolt": {"name": "Bolt M8", "price": 0.35},
    "crane/2": {"name": "Crane, second hand", "price": 19_999.99},
}


class PriceService:
    """Answers `GET /items/<sku>` on a free port of this machine, on threads of its own."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where it is. Raises RuntimeError when it is not open."""
        if self._server is None:
            raise RuntimeError("the price service is not open")
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, sku: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body for an item."""
        self.asked[sku] += 1
        return (200, {}, ITEMS[sku]) if sku in ITEMS else (404, {}, {"error": "no such item"})

    def open(self) -> None:
        """Begin to listen."""
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # connections stay open from request to request

            def do_GET(self) -> None:
                status, headers, body = answer(unquote(self.path.removeprefix("/items/")))
                content = orjson.dumps(body)
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """End it."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
