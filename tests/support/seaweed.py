"""SeaweedFS as a child process: S3 with conditional writes, and an Iceberg REST catalogue."""

import json
import subprocess
import sysconfig
from pathlib import Path

from pyarrow.fs import FileType

from service.devservers.process import HOST, EmbeddedServer, connects
from sinks.storage import Storage
from tests.support.patience import seconds

WEED = Path(sysconfig.get_path("scripts")) / "weed"
BUCKET, PUBLIC = "lake", "public"
KEY_ID, SECRET = "headrace-test", "headrace-secret-0123456789"
NEW_KEY_ID, NEW_SECRET = "headrace-renewed", "headrace-renewed-0123456789"  # may write, too
READER = "headrace-reader", "headrace-reads-0123456789"
_GRPC = "master", "volume", "filer", "admin", "s3"


class EmbeddedSeaweed(EmbeddedServer):
    """An object store in `state_dir`: `BUCKET` may be written by one key and read by another.

    What lies in `PUBLIC`, anybody may read and write, without a signature.
    """

    name = "seaweed"
    port_count = 3 + 4 + len(_GRPC)

    def __init__(self, state_dir: Path, certificate: tuple[Path, Path] | None = None) -> None:
        super().__init__(state_dir)
        self._certificate = certificate

    @property
    def url(self) -> str:
        """The S3 endpoint; known once the server has been opened."""
        return f"http://{self.address}"

    @property
    def https_url(self) -> str:
        """The S3 endpoint by TLS, for a server with a certificate."""
        return f"https://{HOST}:{self._ports[2]}"

    @property
    def catalogue_url(self) -> str:
        """The Iceberg REST catalogue; requests are signed as those to S3 are."""
        return f"http://{HOST}:{self._ports[1]}"

    def storage(self, folder: str = "", *, writes: bool = True) -> Storage:
        """A warehouse in the bucket, with the key that may write or the one that may not."""
        key_id, secret = (KEY_ID, SECRET) if writes else READER
        return Storage(
            f"s3://{BUCKET}/{folder}".rstrip("/"),
            endpoint=self.url,
            secrets={"access_key_id": key_id, "secret_access_key": secret},
        )

    def catalogue(self, bucket: str) -> dict[str, str]:
        """The properties of pyiceberg's catalogue over a table bucket, which is made."""
        master, grpc = self._ports[3], self._ports[7]
        subprocess.run(
            [WEED, "shell", f"-master={HOST}:{master}.{grpc}"],
            input=f"s3tables.bucket -create -name {bucket} -account headrace\nexit\n",
            text=True,
            capture_output=True,
            check=True,
            timeout=seconds(60),
        )
        return {
            "type": "rest",
            "uri": self.catalogue_url,
            "warehouse": f"s3://{bucket}/",
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "s3tables",
            "rest.signing-region": "us-east-1",
            "client.access-key-id": KEY_ID,
            "client.secret-access-key": SECRET,
            "client.region": "us-east-1",
            "s3.endpoint": self.url,
            "s3.region": "us-east-1",
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": SECRET,
        }

    def _prepare(self) -> None:
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        keys = {
            KEY_ID: (SECRET, rights),
            NEW_KEY_ID: (NEW_SECRET, rights),
            READER[0]: (READER[1], ["Read", "List"]),
        }
        identities: list[dict[str, object]] = [
            {
                "name": key_id,
                "credentials": [{"accessKey": key_id, "secretKey": secret}],
                "actions": actions,
            }
            for key_id, (secret, actions) in keys.items()
        ]
        allowed = [f"{action}:{PUBLIC}" for action in ("Read", "Write", "List")]
        identities.append({"name": "anonymous", "actions": allowed})
        self._config.write_text(json.dumps({"identities": identities}), encoding="utf-8")
        (self.state_dir / "data").mkdir(exist_ok=True)

    @property
    def _config(self) -> Path:
        return self.state_dir / "s3.json"

    def _command(self) -> list[str]:
        s3, iceberg, https, master, volume, filer, admin, *grpc = self._ports
        http_ports = {"s3": s3, "master": master, "volume": volume, "filer": filer, "admin": admin}
        tls: list[str] = []
        if self._certificate is not None:
            certificate, key = self._certificate
            tls = [f"-s3.port.https={https}", f"-s3.cert.file={certificate}"]
            tls.append(f"-s3.key.file={key}")
        return [
            str(WEED),
            "mini",
            f"-dir={self.state_dir / 'data'}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            *(f"-{name}.port={port}" for name, port in http_ports.items()),
            *(f"-{name}.port.grpc={port}" for name, port in zip(_GRPC, grpc, strict=True)),
            f"-s3.port.iceberg={iceberg}",
            "-s3.port.lance=0",
            f"-s3.config={self._config}",
            "-s3.autoCreateBucket=false",
            f"-bucket={BUCKET},{PUBLIC}",
            *tls,
            "-webdav=false",
            "-admin.ui=false",
            "-master.telemetry=false",
            f"-filer.localSocket={self.state_dir / 'filer.sock'}",
        ]

    def _answers(self) -> bool:
        """Whether the bucket is there; it is made last."""
        if not connects(self.port):
            return False
        try:
            files, bucket = self.storage().filesystem(f"s3://{BUCKET}")
            return files.get_file_info(bucket).type == FileType.Directory
        except OSError:
            return False
