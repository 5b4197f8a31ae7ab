import http.client
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, Self, TypeAlias

from service.devservers.process import HOST
from tests.support.patience import seconds

_DROPPED = (
    "if-none-match",
    "authorization",
    "connection",
    "transfer-encoding",
    "content-length",
    "content-encoding",
    "x-amz-content-sha256",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
)


class Replying(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # so that a small answer is one packet

    def answer(self, answer: "Answer", *, with_content: bool = True) -> None:
        self.send_response_only(answer.status)
        headers = [*answer.headers]
        if "content-length" not in {name.lower() for name, _ in headers}:
            headers.append(("Content-Length", str(len(answer.content))))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if with_content:
            self.wfile.write(answer.content)

    def handle_expect_100(self) -> bool:
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_arguments: object) -> None:
        """Say nothing: clients that were cut off have gone."""


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def is_write(self) -> bool:
        return self.method not in ("GET", "HEAD")


@dataclass(frozen=True)
class Answer:
    status: int
    content: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


Ask: TypeAlias = Callable[[], Answer]
Fault: TypeAlias = Callable[[Asked, Ask], Answer | None]
"""What becomes of a request: asks the store, or not, and answers; None ends the connection."""


class StoreProxy:
    """A proxy to a server of HTTP, which signatures survive. Each request meets its `fault`."""

    def __init__(self, address: str) -> None:
        self.url = ""
        self.fault: Fault = pass_on
        self._address = address

    @contextmanager
    def running(self) -> Iterator[Self]:
        proxy = self

        class Handler(Replying):
            def _pass_on(self) -> None:
                length = self.headers.get("Content-Length", "0")
                is_chunked = self.headers.get("Transfer-Encoding") == "chunked"
                body = _unchunked(self.rfile) if is_chunked else self.rfile.read(int(length))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers, body)
                answer = proxy.fault(asked, lambda: proxy.ask(asked))
                if answer is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    self.answer(answer, with_content=self.command != "HEAD")

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815

        with serving(Handler) as self.url:
            yield self

    def ask(self, asked: Asked) -> Answer:
        """Send a request to the store, with the host for which it was signed."""
        behind = http.client.HTTPConnection(self._address, timeout=seconds(30))
        try:
            is_chunked = asked.headers.get("transfer-encoding") == "chunked"
            body: Any = iter([asked.body]) if is_chunked else asked.body
            headers = {k: v for k, v in asked.headers.items() if k != "connection"}
            behind.request(asked.method, asked.path, body, headers, encode_chunked=is_chunked)
            found = behind.getresponse()
            content = found.read()
        finally:
            behind.close()
        dropped = ("connection", "transfer-encoding", "content-length")
        headers_found = [(k, v) for k, v in found.getheaders() if k.lower() not in dropped]
        length = found.getheader("Content-Length") if asked.method == "HEAD" else None
        return Answer(
            found.status, content, [*headers_found, ("Content-Length", length or str(len(content)))]
        )


def pass_on(_: Asked, ask: Ask) -> Answer:
    return ask()


@contextmanager
def unconditional(address: str) -> Iterator[str]:
    """A proxy to a store: requests lose their condition, and the signature, which covers it."""
    proxy = StoreProxy(address)

    def drop(asked: Asked, _: Ask) -> Answer:
        is_chunked = "aws-chunked" in asked.headers.get("content-encoding", "")
        body = b"".join(_chunks(io.BytesIO(asked.body))) if is_chunked else asked.body
        kept = {k: v for k, v in asked.headers.items() if k not in _DROPPED}
        return proxy.ask(
            replace(asked, headers=kept | {"content-length": str(len(body))}, body=body)
        )

    proxy.fault = drop
    with proxy.running():
        yield proxy.url


def _unchunked(stream: BinaryIO) -> bytes:
    body = b"".join(_chunks(stream))
    stream.readline()
    return body


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The content of HTTP's chunks, and of those that Arrow signs, which lie in them."""
    while size := int(stream.readline().split(b";")[0], 16):
        yield stream.read(size)
        stream.readline()


@contextmanager
def identity_agent(token: str, key_id: str, secret: str) -> Iterator[str]:
    """What gives a pod of EKS its credentials, for this token."""

    class Agent(Replying):
        def do_GET(self) -> None:
            facts = {"AccessKeyId": key_id, "SecretAccessKey": secret, "Token": ""}
            content = json.dumps({**facts, "Expiration": "2100-01-01T00:00:00Z"}).encode()
            knows = self.headers.get("Authorization") == token
            self.answer(Answer(200 if knows else 401, content))

    with serving(Agent) as url:
        yield f"{url}/credentials"


@contextmanager
def serving(handler: type[Replying]) -> Iterator[str]:
    server = _Server((HOST, 0), handler)
    thread = threading.Thread(target=server.serve_forever, name="beside-a-store")
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
