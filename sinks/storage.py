"""The store of tables, and the options by which each of four libraries reaches it.

Arrow writes the files, delta-rs and pyiceberg commit them, Spark reads and writes through Hadoop's
S3A. Each has its own names for an endpoint, a region and a key.
"""

import os
import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from sinks.names import is_absolute, local_path
from topology.errors import SinkFailed
from topology.masking import mask

Kind: TypeAlias = Literal["local", "s3", "gcs", "azure"]
SECRETS = ("access_key_id", "secret_access_key", "session_token", "account_key", "sas_token")
_KINDS: Mapping[str, Kind] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
}
_ESCAPES = re.compile("[#?%]")
_REGION = "us-east-1"  # of a store that has none; requests are signed with one


@dataclass(frozen=True, slots=True)
class Storage:
    """`[storage]`. It holds no connection, may be pickled, and shows no secret.

    Ask it anew for each transaction: a secret's file that has changed is read again. Without
    secrets each library looks for credentials itself: in the environment (`AWS_ACCESS_KEY_ID`),
    by a web identity (`AWS_WEB_IDENTITY_TOKEN_FILE`), of the instance.
    """

    warehouse: str
    """Where relative tables lie: an absolute path or a URI."""
    endpoint: str | None = None
    """The URL of a store that is not the provider's own."""
    region: str | None = None
    path_style: bool = True
    """Whether an endpoint takes buckets in the path, not in the host's name."""
    ca_file: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By the names in SECRETS."""
    secret_files: Mapping[str, str] = field(default_factory=dict)
    """Files that go over `secrets`, wherever they can be read."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """By library ("arrow", "delta", "iceberg"): its own options, over those made here."""
    catalogs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """By name: the properties of Iceberg's catalogues, as pyiceberg has them."""

    def uri(self, table: str) -> str:
        """A table's absolute path, or its URI. Nothing in it is escaped. Raises SinkFailed."""
        found = table if is_absolute(table) else f"{self.warehouse.rstrip('/')}/{table}"
        path = local_path(found)
        if path is not None:
            return str(path)
        if escapes := _ESCAPES.search(found):
            raise SinkFailed(
                f"'{found}': found '{escapes[0]}', which Arrow and delta-rs read differently, "
                "expected, in an object store, a name without '#', '?' and '%'"
            )
        return found

    def reaches(self, table: str) -> bool:
        """Whether Arrow and delta-rs know the store of a table, and read its name alike."""
        try:
            return bool(_kind(self.uri(table)))
        except SinkFailed:
            return False

    def filesystem(self, uri: str) -> tuple[pafs.FileSystem, str]:
        """Arrow's own file system for a URI of `uri`, and the path in it. Raises SinkFailed."""
        kind = _kind(uri)
        if kind == "local":
            return pafs.LocalFileSystem(), str(local_path(uri))
        given = {**self._arrow(kind, uri), **self.options.get("arrow", {})}
        bucket, slash, path = uri.partition(":")[2].lstrip("/").partition("/")
        container = bucket.partition("@")[0]  # Azure's account is not part of the path
        place = f"{container}{slash}{path}".rstrip("/")
        return _filesystem(kind, tuple(sorted(given.items()))), place

    def object_store_options(self, uri: str) -> dict[str, str]:
        """delta-rs's `storage_options` for a URI of `uri`. Raises SinkFailed."""
        kind, secrets = _kind(uri), self._secrets()
        found: dict[str, str | None] = {}
        if self.ca_file is not None and kind != "local":
            _trust(self.ca_file)
        if kind == "s3":
            found = {
                "aws_access_key_id": secrets.get("access_key_id"),
                "aws_secret_access_key": secrets.get("secret_access_key"),
                # An empty one, lest delta-rs put that of the environment to a key of ours.
                "aws_session_token": secrets.get(
                    "session_token", "" if "access_key_id" in secrets else None
                ),
                "aws_region": self._region(),
                # The one tells delta-rs that this is not AWS, the other goes over a variable.
                "aws_endpoint_url": self._bucket_endpoint(uri),
                "aws_endpoint_url_s3": self._bucket_endpoint(uri),
                "aws_virtual_hosted_style_request": option_text(not self._in_path()),
            }
        elif kind == "azure":
            found = {
                "azure_storage_account_key": secrets.get("account_key"),
                "azure_storage_sas_token": secrets.get("sas_token"),
                "azure_endpoint": self.endpoint and f"{self.endpoint}/{_account(uri)}",
            }
        elif kind == "gcs":
            found = {"google_base_url": self.endpoint}
        if (self.endpoint or "").startswith("http://") and kind != "local":
            found["allow_http"] = "true"
        return _given(found) | _texts(self.options.get("delta", {}))

    def catalog_properties(self) -> dict[str, str]:
        """The properties of pyiceberg's file systems, for the warehouse's kind of store."""
        kind, secrets = _kind(self.warehouse), self._secrets()
        found: dict[str, str | None] = {}
        if kind == "s3":
            found = {
                "s3.access-key-id": secrets.get("access_key_id"),
                "s3.secret-access-key": secrets.get("secret_access_key"),
                "s3.session-token": secrets.get("session_token"),
                "s3.region": self._region(),
                "s3.endpoint": self.endpoint,
                "s3.force-virtual-addressing": option_text(not self._in_path()),
            }
        elif kind == "azure":
            arrow = self._arrow(kind, self.warehouse)
            found = {f"adls.{name.replace('_', '-')}": value for name, value in arrow.items()}
        elif kind == "gcs":
            found = {"gcs.service.host": self.endpoint}
        return _given(found) | _texts(self.options.get("iceberg", {}))

    def spark_conf(self) -> dict[str, str]:
        """Spark's properties: of S3, and of the warehouse's kind of store.

        Spark reads secrets when it starts, and none again.
        """
        kind, secrets = _KINDS.get(_scheme(self.warehouse)), self._secrets()
        found: dict[str, str | None] = {}
        if kind == "azure" and "account_key" in secrets:
            host = urlsplit(self.warehouse).hostname
            found[f"spark.hadoop.fs.azure.account.key.{host}"] = secrets["account_key"]
        if kind in (None, "s3"):  # a table may lie there, whatever the warehouse is
            s3a = {
                "access.key": secrets.get("access_key_id"),
                "secret.key": secrets.get("secret_access_key"),
                "session.token": secrets.get("session_token"),
                "endpoint": self.endpoint,
                "endpoint.region": self._region(),
                "path.style.access": option_text(self._in_path()),
                # S3A's own default knows no web identity.
                "aws.credentials.provider": None if "access_key_id" in secrets else _SDK_CHAIN,
            }
            found |= {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
            found["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
        return _given(found)

    def _arrow(self, kind: Kind, uri: str) -> dict[str, Any]:
        secrets = self._secrets()
        scheme, host = ("https", "") if self.endpoint is None else self.endpoint.split("://", 1)
        found: dict[str, Any] = {}
        if kind == "s3":
            found = {
                "access_key": secrets.get("access_key_id"),
                "secret_key": secrets.get("secret_access_key"),
                "session_token": secrets.get("session_token"),
                "region": self._region(),
                "tls_ca_file_path": self.ca_file,
                "force_virtual_addressing": not self.path_style,
                "allow_delayed_open": True,  # one request for a small file, not three
            }
            if host:
                found |= {"endpoint_override": host, "scheme": scheme}
        elif kind == "azure":
            found = {name: secrets.get(name) for name in ("account_key", "sas_token")}
            found["account_name"] = _account(uri)
            if host:
                for api in ("blob", "dfs"):
                    found |= {f"{api}_storage_authority": host, f"{api}_storage_scheme": scheme}
        elif host:
            found = {"endpoint_override": host, "scheme": scheme}
        return {name: value for name, value in found.items() if value is not None}

    def _secrets(self) -> dict[str, str]:
        read = {name: _content(path) for name, path in self.secret_files.items()}
        return {**self.secrets, **{name: value for name, value in read.items() if value}}

    def _region(self) -> str | None:
        return self.region or (None if self.endpoint is None else _REGION)

    def _in_path(self) -> bool:
        return self.path_style and self.endpoint is not None

    def _bucket_endpoint(self, uri: str) -> str | None:
        """The endpoint; delta-rs wants a bucket that is not in the path to be in the host."""
        if self.endpoint is None or self.path_style:
            return self.endpoint
        return self.endpoint.replace("://", f"://{urlsplit(uri).netloc}.", 1)


def spark_jars(uri: str) -> tuple[str, ...]:
    """The sets of jars by which Spark reaches a place."""
    return ("s3a",) if _KINDS.get(_scheme(uri)) == "s3" else ()


_SDK_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"


def _kind(uri: str) -> Kind:
    if local_path(uri) is not None:
        return "local"
    scheme = _scheme(uri)
    if scheme not in _KINDS:
        known = ", ".join(f"{each}://" for each in _KINDS)
        raise SinkFailed(
            f"'{uri}': found {scheme}://, expected a local path and {known}; for other file "
            "systems take a sink that writes by Spark"
        )
    return _KINDS[scheme]


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].lower()


def _account(uri: str) -> str:
    """The account of `abfss://container@account.dfs.core.windows.net/…`."""
    parts = urlsplit(uri)
    if not parts.username or not parts.hostname:
        raise SinkFailed(f"'{uri}': expected abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH")
    return parts.hostname.partition(".")[0]


@lru_cache(maxsize=4)
def _trust(ca_file: str) -> None:
    """Have delta-rs trust these authorities besides the system's, by the one way that it knows.

    It looks into SSL_CERT_FILE when it makes a client, as Python and others in this process do.
    """
    usual = ssl.get_default_verify_paths()
    bundle = Path(ca_file).read_bytes()
    if usual.cafile is not None:
        bundle = Path(usual.cafile).read_bytes() + b"\n" + bundle
    with tempfile.NamedTemporaryFile(prefix="headrace-ca-", suffix=".pem", delete=False) as file:
        file.write(bundle)
    os.environ["SSL_CERT_FILE"] = file.name
    if usual.capath is not None:
        os.environ.setdefault("SSL_CERT_DIR", usual.capath)


@lru_cache(maxsize=16)
def _filesystem(kind: Kind, given: tuple[tuple[str, Any], ...]) -> pafs.FileSystem:
    """Clients are kept: each has its own connections and its own credentials of the instance."""
    make: Any = {"s3": pafs.S3FileSystem, "gcs": pafs.GcsFileSystem, "azure": pafs.AzureFileSystem}
    found: pafs.FileSystem = make[kind](**dict(given))
    return found


def _content(path: str) -> str | None:
    """Return a secret file's content; None where it is missing, as on an executor."""
    try:
        seen = Path(path).stat()
        return _read(path, seen.st_mtime_ns, seen.st_ino, seen.st_size)
    except OSError:
        return None


@lru_cache(maxsize=16)
def _read(path: str, *_seen: int) -> str:
    value = Path(path).read_text().removesuffix("\n").removesuffix("\r")
    mask.add([value])
    return value


def option_text(value: Any) -> str:
    """Spell a value of the configuration as the libraries read it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: option_text(value) for name, value in options.items()}


def _given(found: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in found.items() if value is not None}
