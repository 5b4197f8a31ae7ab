"""A broker that nobody enters unknown: SCRAM, OAUTHBEARER and certificates, each on a port."""

import base64
import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import confluent_kafka.admin as kafka_admin
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from service.devservers.process import HOST, free_ports
from service.devservers.servers import EmbeddedKafka
from tests.support.patience import seconds

SECONDS = seconds(30.0)
USER, PASSWORD = "orders", "canary-of-scram-93"
CLIENT, SECRET = "orders-client", "canary-of-oauth-94"
AUDIENCE, SCOPE = "kafka", "read-and-write"
Rule = tuple[str, str, str]  # kind, name or name*, operations
_PREFIX = "org.apache.kafka.common.security"
_WAYS = ("scram", "oauth", "tls", "elsewhere")


class TokenServer(ThreadingHTTPServer):
    """Gives a client that knows its secret a signed token (OAuth 2.0, client credentials)."""

    daemon_threads = True

    def __init__(self, folder: Path, lifetime_seconds: float) -> None:
        super().__init__((HOST, 0), _TokenHandler)
        self.lifetime_seconds = lifetime_seconds
        self.issued = self.refused = 0
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        self.keys = folder / "jwks.json"
        self.keys.write_text(json.dumps(KeySet([self.key]).as_dict(private=False)))
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/token"

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def token(self) -> dict[str, Any]:
        self.issued += 1
        now = time.time()
        claims = {"sub": CLIENT, "aud": AUDIENCE, "scope": SCOPE, "iss": "tests", "iat": int(now)}
        claims["exp"] = int(now + self.lifetime_seconds)
        text = jwt.encode({"alg": "RS256", "kid": "one", "typ": "JWT"}, claims, self.key)
        return {
            "access_token": text, "token_type": "Bearer", "expires_in": self.lifetime_seconds
        }  # fmt: skip


class _TokenHandler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        known = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        is_known = self.headers["Authorization"] == f"Basic {known}"
        assert form["grant_type"] == ["client_credentials"]
        if not is_known:
            self.server.refused += 1
        answer = self.server.token() if is_known else {"error": "invalid_client"}
        body = json.dumps(answer).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base
        """Say nothing."""


class GuardedKafka(EmbeddedKafka):
    """Besides the open port, which is the superuser's, one for each way to be known.

    `server` and `elsewhere` are PKCS12 files with keys, and `trusted` one with whom to trust;
    `elsewhere` is made out to another host, and shown on the port of that name.
    """

    def __init__(
        self,
        folder: Path,
        tokens: TokenServer,
        *,
        server: Path,
        elsewhere: Path,
        trusted: Path,
        password: str,
    ) -> None:
        plain, controller, *guarded = free_ports(2 + len(_WAYS))
        self.ports = dict(zip(_WAYS, guarded, strict=True))
        self._tokens = tokens
        super().__init__(folder, plain)
        shown = ",".join(
            [f"PLAINTEXT://{HOST}:{plain}"]
            + [f"{way.upper()}://{HOST}:{port}" for way, port in self.ports.items()]
        )
        self._properties = {
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"{shown},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": shown,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "SCRAM:SASL_SSL,OAUTH:SASL_SSL,TLS:SSL,ELSEWHERE:SSL",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:CN=client;User:{CLIENT}",  # all but SCRAM's
            **_signing_in("scram", "SCRAM-SHA-512", f"{_PREFIX}.scram.ScramLoginModule"),
            **_signing_in(
                "oauth", "OAUTHBEARER", f"{_PREFIX}.oauthbearer.OAuthBearerLoginModule"
            ),
            "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": (
                f"{_PREFIX}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.oauth.oauthbearer.connections.max.reauth.ms": "3600000",
            "sasl.oauthbearer.jwks.endpoint.url": self._tokens.keys.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "listener.name.tls.ssl.client.auth": "required",
        }  # fmt: skip
        for way in _WAYS:
            name = f"listener.name.{way}.ssl"
            self._properties |= {
                f"{name}.keystore.type": "PKCS12",
                f"{name}.keystore.location": str(elsewhere if way == "elsewhere" else server),
                f"{name}.keystore.password": password,
                f"{name}.truststore.type": "PKCS12",
                f"{name}.truststore.location": str(trusted),
                f"{name}.truststore.password": password,
            }

    def jvm_flags(self) -> tuple[str, ...]:
        """Kafka reads keys of tokens from nowhere but where it is told it may."""
        allowed = self._tokens.keys.as_uri()
        return (*super().jvm_flags(), f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}")

    def at(self, way: str) -> str:
        return f"{HOST}:{self.ports[way]}"

    def admit(self) -> None:
        info = kafka_admin.ScramCredentialInfo(kafka_admin.ScramMechanism.SCRAM_SHA_512, 4096)
        change = kafka_admin.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        admin = self._admin()  # must outlive the answer
        admin.alter_user_scram_credentials([change])[USER].result(SECONDS)

    def allow(self, *rules: Rule) -> None:
        """Give the user of SCRAM rights; nobody but superusers has others."""
        bindings = [
            kafka_admin.AclBinding(
                kafka_admin.ResourceType[kind],
                name.removesuffix("*"),
                kafka_admin.ResourcePatternType["PREFIXED" if name.endswith("*") else "LITERAL"],
                f"User:{USER}",
                "*",
                kafka_admin.AclOperation[operation],
                kafka_admin.AclPermissionType.ALLOW,
            )
            for kind, name, operations in rules
            for operation in operations.split()
        ]
        admin = self._admin()  # must outlive the answer
        for answer in admin.create_acls(bindings).values():
            answer.result(SECONDS)


def _signing_in(way: str, mechanism: str, module: str) -> Mapping[str, str]:
    name = f"listener.name.{way}"
    return {
        f"{name}.sasl.enabled.mechanisms": mechanism,
        f"{name}.{mechanism.lower()}.sasl.jaas.config": f"{module} required;",
    }
