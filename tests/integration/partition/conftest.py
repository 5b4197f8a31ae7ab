"""A ZooKeeper with users and TLS, and an authority that signs certificates."""

import gc
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from partition.offsets.ownership import NodeNames
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.config.connections import ZooKeeperConfig
from service.devservers.process import HOST, free_ports
from service.devservers.servers import EmbeddedZooKeeper
from tests.support.patience import seconds

STORE_PASSWORD = "of-the-keystore"  # noqa: S105
USER = "orders"
PASSWORD = "canary-2c8f41"  # noqa: S105
JAAS = f"""Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required user_{USER}="{PASSWORD}";
}};
"""
# keytool shows no private keys.
PRINT_KEY = """\
class PrintKey {
    public static void main(String[] words) throws Exception {
        char[] password = words[1].toCharArray();
        var store = java.security.KeyStore.getInstance("PKCS12");
        store.load(new java.io.FileInputStream(words[0]), password);
        var key = java.util.Base64.getMimeEncoder().encodeToString(
            store.getKey(words[2], password).getEncoded());
        System.out.println("-----BEGIN PRIVATE KEY-----\\n" + key + "\\n-----END PRIVATE KEY-----");
    }
}
"""


@dataclass(frozen=True)
class Authority:
    """A certificate authority made with the JDK's keytool; files go to `folder`."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self._make("ca", f"CN={self.name}", "bc:c=ca:true")
        self.certificate.write_bytes(self._keytool("ca", "-exportcert", "-rfc"))
        self._import("trusted", self.certificate, "ca")

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}-ca.pem"

    @property
    def trusted(self) -> Path:
        """A PKCS12 file in which a JVM finds whom to trust."""
        return self.keys("trusted")

    def sign(self, name: str, alternative_names: str) -> None:
        self._make(name, f"CN={name}", f"san={alternative_names}")
        request = self.folder / f"{name}.csr"
        request.write_bytes(self._keytool(name, "-certreq"))
        signed = self._keytool(
            "ca", "-gencert", "-rfc", "-infile", request, "-ext", f"san={alternative_names}"
        )
        path = self.folder / f"{name}.pem"
        path.write_bytes(signed + self.certificate.read_bytes())
        self._import(name, path, name)

    def pem(self, name: str) -> tuple[Path, Path]:
        """A signed certificate and its private key, as PEM files."""
        program = self.folder / "PrintKey.java"
        program.write_text(PRINT_KEY, encoding="ascii")
        key = self.folder / f"{name}-key.pem"
        key.write_bytes(_run("java", program, self.keys(name), STORE_PASSWORD, name))
        return self.folder / f"{name}.pem", key

    def keys(self, name: str) -> Path:
        """A PKCS12 file with a certificate and its private key, under the alias `name`."""
        return self.folder / f"{self.name}-{name}.p12"

    def _make(self, name: str, subject: str, extension: str) -> None:
        key = ("-keyalg", "EC", "-groupname", "secp256r1", "-validity", "2")
        self._keytool(name, "-genkeypair", *key, "-dname", subject, "-ext", extension)

    def _import(self, store: str, path: Path, alias: str) -> None:
        arguments = ("-importcert", "-noprompt", "-file", path, "-alias", alias)
        _run("keytool", *arguments, *self._in(store))

    def _keytool(self, name: str, *arguments: object) -> bytes:
        return _run("keytool", *arguments, "-alias", name, *self._in(name))

    def _in(self, name: str) -> tuple[object, ...]:
        place = ("-keystore", self.keys(name), "-storepass", STORE_PASSWORD)
        return ("-storetype", "PKCS12", *place)


def _run(tool: str, *arguments: object) -> bytes:
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
    flags = [f"-J{flag}" for flag in quick] if tool == "keytool" else quick
    command = [str(shutil.which(tool)), *flags, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, timeout=seconds(60)).stdout


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """An authority that has signed `server`, `elsewhere` (another host's) and `client`."""
    authority = Authority(tmp_path_factory.mktemp("authority"), "ours")
    authority.sign("server", "ip:127.0.0.1,dns:localhost")
    authority.sign("elsewhere", "dns:zookeeper.example")
    authority.sign("client", "dns:client.example")
    return authority


@pytest.fixture(scope="session")
def another(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("another"), "another")


@dataclass(frozen=True)
class Secured:
    """A server that knows one user, and speaks TLS on a second port."""

    server: EmbeddedZooKeeper
    tls_port: int
    username: str = USER
    password: str = PASSWORD

    @property
    def tls_address(self) -> str:
        """`127.0.0.1:port` of the second port."""
        return f"{HOST}:{self.tls_port}"


@pytest.fixture(scope="session")
def secured(authority, tmp_path_factory):
    """Its certificate is made out to 127.0.0.1 and localhost."""
    yield from _secured(authority, "server", tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="session")
def impostor(authority, tmp_path_factory):
    """Its certificate is signed by our authority, and made out to another host."""
    yield from _secured(authority, "elsewhere", tmp_path_factory.mktemp("impostor"))


def _secured(authority: Authority, name: str, folder: Path) -> Iterator[Secured]:
    jaas = folder / "jaas.conf"
    jaas.write_text(JAAS, encoding="ascii")
    (tls_port,) = free_ports(1)
    server = EmbeddedZooKeeper(
        folder / "state",
        properties={
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(tls_port),
            "secureClientPortAddress": HOST,
            "ssl.keyStore.location": str(authority.keys(name)),
            "ssl.keyStore.password": STORE_PASSWORD,
            "ssl.trustStore.location": str(authority.trusted),
            "ssl.trustStore.password": STORE_PASSWORD,
            "ssl.clientAuth": "want",
        },
        flags=[f"-Djava.security.auth.login.config={jaas}"],
    )
    server.open()
    try:
        yield Secured(server, tls_port)
    finally:
        server.close()


@pytest.fixture
def root():
    return f"/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def connect(root):
    """`connect(address, **keys)` opens a store by the keys of `[zookeeper]`."""
    stores = []

    def connect(address: str, *, patience: float = 20.0, **keys: Any) -> ZooKeeperStore:
        config = ZooKeeperConfig(hosts=address, root=root, **keys)
        store = ZooKeeperStore(
            config.hosts,
            NodeNames(config.root, "shop", "shop-1"),
            session_timeout_seconds=4.0,
            timeout_seconds=seconds(patience),
            kazoo_options=config.security().kazoo_options(),
        )
        stores.append(store)
        store.open()
        return store

    yield connect
    for store in stores:
        store.close()
    gc.collect()  # the sockets of handshakes that failed
