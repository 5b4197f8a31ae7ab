"""Where schemas are registered: confluent-kafka's registry in memory, and one behind HTTP.

The one behind HTTP keeps to the documented REST interface, as far as the client uses it:
schemas by subject and by id, error codes, basic authentication.
"""

import base64
import json
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from confluent_kafka.schema_registry import SchemaRegistryClient

from topology.payloads.schema_registry import Registry


class MockWorld:
    def __init__(self) -> None:
        self.client = SchemaRegistryClient.new_client({"url": "mock://tests"})

    def registry(self) -> Registry:
        return Registry(client=self.client)

    def close(self) -> None:
        pass


class HttpWorld:
    user = "headrace:secret"

    def __init__(self) -> None:
        self.server = RegistryServer(("127.0.0.1", 0), _Handler)
        self.server.credentials = base64.b64encode(self.user.encode()).decode()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.client = SchemaRegistryClient(
            {"url": self.url, "basic.auth.user.info": self.user, "timeout": 10}
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def registry(self, **properties: Any) -> Registry:
        return Registry(self.url, {"basic.auth.user.info": self.user, **properties})

    @property
    def asked(self) -> list[str]:
        return self.server.asked

    def answer(self, how: "Callable[[], tuple[int, Any]] | None") -> None:
        """Have every request answered like this from now on; None: as usual."""
        self.server.instead = how

    def go_away(self) -> None:
        if self.thread.is_alive():
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()

    def close(self) -> None:
        self.client.close()
        self.go_away()


class RegistryServer(ThreadingHTTPServer):
    daemon_threads = True
    credentials = ""
    instead: Callable[[], tuple[int, Any]] | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[str] = []
        self.lock = threading.Lock()
        self.schemas: list[dict[str, Any]] = []  # the id is the place, from 1
        self.subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        with self.lock:
            schema = schema | {"guid": str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(schema)))}
            if schema not in self.schemas:
                self.schemas.append(schema)
            number = self.schemas.index(schema) + 1
            versions = self.subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            return number

    def version(self, subject: str, version: int) -> tuple[int, Any]:
        numbers = self.subjects.get(subject)
        if numbers is None:
            return _no_such(40401, f"Subject '{subject}' not found.")
        if not 1 <= version <= len(numbers):
            return _no_such(40402, f"Version {version} not found.")
        number = numbers[version - 1]
        return 200, {"subject": subject, "version": version, "id": number} | self.schemas[
            number - 1
        ]


class _Handler(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        match self._path():
            case ["schemas", "ids", number] if 1 <= int(number) <= len(self.server.schemas):
                self._reply(200, self.server.schemas[int(number) - 1])
            case ["schemas", "ids", number]:
                self._reply(*_no_such(40403, f"Schema {number} not found"))
            case ["schemas", "guids", guid]:
                found = [each for each in self.server.schemas if each["guid"] == guid]
                self._reply(200, found[0]) if found else self._reply(*_no_such(40403, guid))
            case ["subjects", subject, "versions", version]:
                last = len(self.server.subjects.get(subject, ()))
                at = last if version in ("latest", "-1") else int(version)
                self._reply(*self.server.version(subject, at))
            case _:
                self._reply(404, {"error_code": 404, "message": "HTTP 404 Not Found"})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        sent = json.loads(self.rfile.read(size))
        schema = {
            name: sent[name] for name in ("schema", "schemaType", "references") if sent.get(name)
        }
        match self._path():
            case ["subjects", subject, "versions"]:
                number = self.server.register(subject, schema)
                self._reply(200, {"id": number} | self.server.schemas[number - 1])
            case ["subjects", subject]:
                number = self.server.register(subject, schema)
                versions = self.server.subjects[subject]
                self._reply(*self.server.version(subject, versions.index(number) + 1))
            case _:
                self._reply(404, {"error_code": 404, "message": "HTTP 404 Not Found"})

    def _path(self) -> list[str]:
        path = urlsplit(self.path).path
        self.server.asked.append(path)
        return [unquote(part) for part in path.strip("/").split("/")]

    def _reply(self, status: int, body: Any) -> None:
        if self.headers.get("Authorization") != f"Basic {self.server.credentials}":
            status, body = 401, {"error_code": 40101, "message": "Unauthorized"}
        if self.server.instead is not None:
            status, body = self.server.instead()
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_arguments: Any) -> None:
        pass


def _no_such(code: int, message: str) -> tuple[int, Any]:
    return 404, {"error_code": code, "message": message}
