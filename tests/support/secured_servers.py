"""Servers that ask who is there (SCRAM, OAUTHBEARER, certificates), and whom they trust."""

import base64
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs

import confluent_kafka.admin as kafka_admin
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from service.devservers.process import HOST, free_ports
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.near_a_store import Answer, Replying, serving
from tests.support.patience import seconds

SECONDS = seconds(30.0)
USER, PASSWORD = "orders", "canary-of-scram-93"
CLIENT, SECRET = "orders-client", "canary-of-oauth-94"
AUDIENCE, SCOPE = "kafka", "read-and-write"
SCRAM = "SCRAM-SHA-512"
Rule = tuple[str, str, str]  # kind, name or name*, operations
_MODULE = "org.apache.kafka.common.security"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # All but SCRAM's user; nobody is known on the open port.
    "super.users": f"User:ANONYMOUS;User:CN=client;User:{CLIENT}",
}


class Authority:
    """A certificate authority, made with openssl; `signed` are subjects' alternative names."""

    def __init__(self, folder: Path, **signed: str) -> None:
        self.folder = folder
        self.certificate = folder / "ca.crt"
        folder.mkdir(exist_ok=True)
        made = ("-keyout", "ca.key", "-out", "ca.crt", "-days", "2")
        self._run("req", "-x509", *_KEY, *made, "-subj", f"/CN={folder.name}")
        for name, alternative in signed.items():
            (folder / f"{name}.ext").write_text(f"subjectAltName={alternative}", encoding="ascii")
            made = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            self._run("req", *_KEY, *made)
            trust = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
            made = ("-extfile", f"{name}.ext", "-out", f"{name}.crt")
            self._run("x509", "-req", "-in", f"{name}.csr", *trust, *made)
            parts = [path.read_text("ascii") for path in reversed(self.pem(name))]
            self.keys(name).write_text("".join(parts), encoding="ascii")

    def pem(self, name: str) -> tuple[Path, Path]:
        """A certificate and its private key."""
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def keys(self, name: str) -> Path:
        """Both in one file, as a JVM takes them."""
        return self.folder / f"{name}.pem"

    def _run(self, *arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True, timeout=SECONDS)


class TokenServer:
    """Gives a client that knows its secret a signed token (OAuth 2.0, client credentials)."""

    def __init__(self, folder: Path, lifetime_seconds: float) -> None:
        self.lifetime_seconds = lifetime_seconds
        self.issued = 0
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        self.keys = folder / "jwks.json"
        self.keys.write_text(json.dumps(KeySet([self.key]).as_dict(private=False)))

    @contextmanager
    def running(self) -> Iterator[Self]:
        tokens, known = self, base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()

        class Handler(Replying):
            def do_POST(self) -> None:  # noqa: N802 - as its base
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                assert form["grant_type"] == ["client_credentials"]
                is_known = self.headers["Authorization"] == f"Basic {known}"
                said = tokens.token() if is_known else {"error": "invalid_client"}
                kind = [("Content-Type", "application/json")]
                self.answer(Answer(200 if is_known else 401, json.dumps(said).encode(), kind))

        with serving(Handler) as url:
            self.url = f"{url}/token"
            yield self

    def token(self) -> dict[str, Any]:
        self.issued += 1
        now = time.time()
        claims = {"sub": CLIENT, "aud": AUDIENCE, "scope": SCOPE, "iss": "tests", "iat": int(now)}
        claims["exp"] = int(now + self.lifetime_seconds)
        text = jwt.encode({"alg": "RS256", "kid": "one", "typ": "JWT"}, claims, self.key)
        return {
            "access_token": text, "token_type": "Bearer", "expires_in": self.lifetime_seconds
        }  # fmt: skip


class Way(NamedTuple):
    """A port by which clients come in: how they sign in, and as whom the broker shows itself."""

    name: str
    mechanism: str = ""
    keys: Path | None = None  # with TLS

    @property
    def protocol(self) -> str:
        return f"{'SASL_' * bool(self.mechanism)}{'SSL' if self.keys else 'PLAINTEXT'}"

    def properties(self, trusted: Path | None) -> Mapping[str, str]:
        listener = f"listener.name.{self.name}"
        found: dict[str, str] = {}
        if self.mechanism:
            login = "oauthbearer.OAuthBearer" if self.mechanism == "OAUTHBEARER" else "scram.Scram"
            jaas = f"{_MODULE}.{login}LoginModule required;"
            found[f"{listener}.sasl.enabled.mechanisms"] = self.mechanism
            found[f"{listener}.{self.mechanism.lower()}.sasl.jaas.config"] = jaas
        if self.keys:
            found[f"{listener}.ssl.keystore.type"] = "PEM"
            found[f"{listener}.ssl.keystore.location"] = str(self.keys)
        if trusted:
            found[f"{listener}.ssl.truststore.type"] = "PEM"
            found[f"{listener}.ssl.truststore.location"] = str(trusted)
        return found


class GuardedKafka(EmbeddedKafka):
    """Besides the open port of 127.0.0.1, one for each way, under `address`."""

    def __init__(
        self,
        folder: Path,
        *ways: Way,
        address: str = HOST,
        trusted: Path | None = None,
        properties: Mapping[str, str] = AUTHORIZED,
        tokens: TokenServer | None = None,
    ) -> None:
        plain, controller, *ports = free_ports(2 + len(ways))
        self._ports_of = {way.name: port for way, port in zip(ways, ports, strict=True)}
        self._address, self._tokens = address, tokens
        names = [way.name.upper() for way in ways]
        protocols = [f"{way.name.upper()}:{way.protocol}" for way in ways]
        own = f"PLAINTEXT://{HOST}:{plain}"
        heard = [f"{name}://{HOST}:{port}" for name, port in zip(names, ports, strict=True)]
        shown = [f"{name}://{address}:{port}" for name, port in zip(names, ports, strict=True)]
        made = {
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": ",".join([own, *heard, f"CONTROLLER://{HOST}:{controller}"]),
            "advertised.listeners": ",".join([own, *shown]),
            "listener.security.protocol.map": ",".join(
                ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *protocols]
            ),
        }
        for way in ways:
            made |= way.properties(trusted)
        super().__init__(folder, plain, properties=made | dict(properties))

    def jvm_flags(self) -> tuple[str, ...]:
        """Kafka reads keys of tokens from nowhere but where it is told it may."""
        name = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
        allowed = (f"-D{name}={self._tokens.keys.as_uri()}",) if self._tokens else ()
        return (*super().jvm_flags(), *allowed)

    def at(self, way: str) -> str:
        return f"{self._address}:{self._ports_of[way]}"

    def admit(self, password: str = PASSWORD) -> None:
        """Let the user of SCRAM sign in from now on, with this password alone."""
        info = kafka_admin.ScramCredentialInfo(kafka_admin.ScramMechanism.SCRAM_SHA_512, 4096)
        change = kafka_admin.UserScramCredentialUpsertion(USER, info, password.encode())
        admin = self._admin()  # must outlive the answer
        admin.alter_user_scram_credentials([change])[USER].result(SECONDS)

    def allow(self, *rules: Rule) -> None:
        """Give the user of SCRAM rights; nobody but superusers has others."""
        admin = self._admin()  # must outlive the answer
        for answer in admin.create_acls(_rights(rules, kafka_admin.AclBinding)).values():
            answer.result(SECONDS)

    def forbid(self, *rules: Rule) -> None:
        """Take rights from the user of SCRAM."""
        admin = self._admin()
        for answer in admin.delete_acls(_rights(rules, kafka_admin.AclBindingFilter)).values():
            assert len(answer.result(SECONDS)) == 1


def _rights(rules: tuple[Rule, ...], kind: Any) -> list[Any]:
    return [
        kind(
            kafka_admin.ResourceType[resource],
            name.removesuffix("*"),
            kafka_admin.ResourcePatternType["PREFIXED" if name.endswith("*") else "LITERAL"],
            f"User:{USER}",
            "*",
            kafka_admin.AclOperation[operation],
            kafka_admin.AclPermissionType.ALLOW,
        )
        for resource, name, operations in rules
        for operation in operations.split()
    ]


class GuardedZooKeeper(EmbeddedZooKeeper):
    """Besides the open port, on which a user may sign in by SASL, one for TLS."""

    def __init__(self, folder: Path, authority: Authority, name: str = "server") -> None:
        (self.tls_port,) = free_ports(1)
        self.tls_address = f"{HOST}:{self.tls_port}"
        folder.mkdir(exist_ok=True)
        jaas = folder / "jaas.conf"
        login = "org.apache.zookeeper.server.auth.DigestLoginModule"
        text = f'Server {{ {login} required user_{USER}="{PASSWORD}"; }};'
        jaas.write_text(text, encoding="ascii")
        properties = {
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(self.tls_port),
            "secureClientPortAddress": HOST,
            "ssl.keyStore.location": str(authority.keys(name)),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(authority.certificate),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "want",
        }
        flags = [f"-Djava.security.auth.login.config={jaas}"]
        super().__init__(folder, properties=properties, flags=flags)
