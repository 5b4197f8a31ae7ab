"""What stands beside an object store: a proxy that drops conditions, an identity agent, TLS."""

import http.client
import io
import ipaddress
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from service.embedded.ports import HOST
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@contextmanager
def unconditional(address: str) -> Iterator[str]:
    """A proxy to a store: requests lose their condition, and the signature, which covers it."""

    class Proxy(_Handler):
        def _pass_on(self) -> None:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b"".join(_chunks(self.rfile))
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "aws-chunked" in self.headers.get("Content-Encoding", ""):
                body = b"".join(_chunks(io.BytesIO(body)))
            kept = {k: v for k, v in self.headers.items() if k.lower() not in _DROPPED}
            behind = http.client.HTTPConnection(address, timeout=seconds(30))
            behind.request(self.command, self.path, body, kept)
            found = behind.getresponse()
            content = found.read()
            headers = [(k, v) for k, v in found.getheaders() if k.lower() not in _DROPPED]
            length = found.getheader("Content-Length") if self.command == "HEAD" else None
            headers.append(("Content-Length", length or str(len(content))))
            self.answer(found.status, headers, content)
            behind.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815

    with _serving(Proxy) as url:
        yield url


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The content of HTTP's chunks, and of those that Arrow signs, which lie in them."""
    while size := int(stream.readline().split(b";")[0], 16):
        yield stream.read(size)
        stream.readline()


@contextmanager
def identity_agent(token: str, key_id: str, secret: str) -> Iterator[str]:
    """What gives a pod of EKS its credentials, for this token."""

    class Agent(_Handler):
        def do_GET(self) -> None:
            facts = {"AccessKeyId": key_id, "SecretAccessKey": secret, "Token": ""}
            content = json.dumps({**facts, "Expiration": "2100-01-01T00:00:00Z"}).encode()
            knows = self.headers.get("Authorization") == token
            length = [("Content-Length", str(len(content)))]
            self.answer(200 if knows else 401, length, content)

    with _serving(Agent) as url:
        yield f"{url}/credentials"


@contextmanager
def _serving(handler: type[_Handler]) -> Iterator[str]:
    server = ThreadingHTTPServer((HOST, 0), handler)
    thread = threading.Thread(target=server.serve_forever, name="beside-a-store")
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def signed(address: str, folder: Path) -> tuple[Path, Path]:
    """A certificate of an address and its key; `ca.pem` in `folder` has signed it."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of the tests")])
    now = datetime.now(UTC)
    new = (
        x509.CertificateBuilder()
        .issuer_name(ca)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    authority = new.subject_name(ca).public_key(ca_key.public_key()).serial_number(1)
    own = new.subject_name(x509.Name([])).public_key(key.public_key()).serial_number(2)
    made = {
        "ca.pem": authority.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        ),
        "store.pem": own.add_extension(names, critical=True),
    }
    for name, builder in made.items():
        certificate = builder.sign(ca_key, hashes.SHA256())
        (folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "store-key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "store.pem", folder / "store-key.pem"
