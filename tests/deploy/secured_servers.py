"""A Kafka and a ZooKeeper that take nobody who does not sign in, by TLS; made with openssl."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from service.devservers.process import HOST, free_ports
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support.patience import seconds

_SECONDS = seconds(30.0)
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates:
    """An authority, `ca.crt`, and what it has signed: a server at an address, and a client."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        folder.mkdir()
        self._run("req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2",
                  "-subj", "/CN=authority")  # fmt: skip
        self._sign("server", f"subjectAltName=IP:{address},IP:{HOST}")
        self._sign("tls", "subjectAltName=DNS:client.example")
        parts = [(folder / name).read_text("ascii") for name in ("server.key", "server.crt")]
        (folder / "server.pem").write_text("".join(parts), encoding="ascii")

    @property
    def server(self) -> str:
        """Key and certificate in one file."""
        return str(self.folder / "server.pem")

    @property
    def authority(self) -> str:
        return str(self.folder / "ca.crt")

    def _sign(self, name: str, extension: str) -> None:
        (self.folder / f"{name}.ext").write_text(extension, encoding="ascii")
        self._run("req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr",
                  "-subj", f"/CN={name}")  # fmt: skip
        self._run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                  "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext",
                  "-out", f"{name}.crt")  # fmt: skip

    def _run(self, *arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments],
            cwd=self.folder,
            check=True,
            capture_output=True,
            timeout=seconds(60),
        )


class SecuredKafka(EmbeddedKafka):
    """Besides the open port of 127.0.0.1 one for SCRAM by TLS, under another address."""

    def __init__(self, folder: Path, certificates: Certificates, address: str) -> None:
        super().__init__(folder)
        (port,) = free_ports(1)
        self._guarded_port, self._address, self._certificates = port, address, certificates

    @property
    def guarded(self) -> str:
        return f"{self._address}:{self._guarded_port}"

    def _prepare(self) -> None:
        plain, controller = self._ports
        own = f"PLAINTEXT://{HOST}:{plain}"
        name = "listener.name.sasl_ssl"
        self._properties = {
            "listeners": f"{own},SASL_SSL://{HOST}:{self._guarded_port},"
            f"CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"{own},SASL_SSL://{self.guarded}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,"
            "CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{name}.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            f"{name}.ssl.keystore.type": "PEM",
            f"{name}.ssl.keystore.location": self._certificates.server,
        }
        super()._prepare()

    def admit(self, user: str, password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.alter_user_scram_credentials([change])[user].result(_SECONDS)


class SecuredZooKeeper(EmbeddedZooKeeper):
    def __init__(self, folder: Path, certificates: Certificates) -> None:
        (self.tls_port,) = free_ports(1)
        properties: Mapping[str, str] = {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(self.tls_port),
            "secureClientPortAddress": HOST,
            "ssl.keyStore.location": certificates.server,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": certificates.authority,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "want",
        }
        super().__init__(folder, properties=properties)
