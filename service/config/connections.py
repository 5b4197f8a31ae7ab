"""Sections `[storage]` and `[zookeeper]`: addresses, credentials and TLS of what a run connects to.

A key is checked against those above it, so a fault is told at the key that has it.
"""

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from partition.zookeeper.zookeeper_client import ZooKeeperSecurity
from service.config.sources import PREFIX, flat
from sinks.names import is_uri
from sinks.storage import SECRETS, Storage
from topology.masking import redacted, secrets_in


class Section(BaseModel):
    """A table of the file. Unknown keys are errors, values never change, no secret is shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, redacted(value, name or "")) for name, value in super().__repr_args__()]


_LIBRARIES = "AWS_", "AZURE_", "GOOGLE_"  # how the variables begin that libraries read themselves
Options: TypeAlias = Annotated[dict[str, str | int | float | bool], BeforeValidator(flat)]


def _endpoint(url: str | None) -> str | None:
    parts = urlsplit(url or "")
    if url and (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.username
        or parts.path.strip("/")
        or parts.query
    ):
        raise ValueError("http://host:port or https://host:port")
    return url.rstrip("/") if url else None


def _authorities(path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        raise ValueError("a PEM file with the authorities to trust (no such file)")
    return path


def _password(url: object) -> str:
    try:
        return unquote(urlsplit(str(url)).password or "")
    except ValueError:  # of a host
        return ""


class StorageOptions(Section):
    """`[storage.options]`: options of each library, by its own names."""

    arrow: Options = Field(default_factory=dict)
    delta: Options = Field(default_factory=dict)
    iceberg: Options = Field(default_factory=dict)


class StorageConfig(Section):
    """`[storage]`: the store of the tables, and access to it."""

    warehouse: str = "warehouse"
    endpoint: Annotated[str | None, AfterValidator(_endpoint)] = None
    region: str | None = None
    path_style: bool = True
    ca_file: Annotated[Path | None, AfterValidator(_authorities)] = None
    access_key_id: SecretStr | None = None
    secret_access_key: Annotated[SecretStr | None, Field(validate_default=True)] = None
    session_token: SecretStr | None = None
    account_key: SecretStr | None = None
    sas_token: SecretStr | None = None
    options: StorageOptions = StorageOptions()
    catalogs: Annotated[dict[str, Options], Field(repr=False)] = Field(
        default_factory=dict,
        description="Iceberg's catalogues by name, with pyiceberg's properties",
    )

    @field_validator("secret_access_key")
    @classmethod
    def _key_has_its_secret(cls, secret: SecretStr | None, info: ValidationInfo) -> Any:
        if "access_key_id" in info.data and (secret is None) != (
            info.data["access_key_id"] is None
        ):
            raise ValueError("access_key_id and secret_access_key, both or neither")
        return secret

    def storage(self) -> Storage:
        """Return the sinks' own object; a warehouse that is a path is made absolute."""
        variables = {name: f"{PREFIX}STORAGE__{name.upper()}__FILE" for name in SECRETS}
        files = {name: os.environ[v] for name, v in variables.items() if v in os.environ}
        place = self.warehouse
        return Storage(
            warehouse=place if is_uri(place) else str(Path(place).resolve()),
            endpoint=self.endpoint,
            region=self.region,
            path_style=self.path_style,
            ca_file=None if self.ca_file is None else str(self.ca_file),
            secrets=self._secrets(),
            secret_files=files,
            options=self.options.model_dump(),
            catalogs=self.catalogs,
        )

    def secrets(self) -> list[str]:
        """Return values that must not be shown, those that libraries find themselves too."""
        options: Mapping[str, Mapping[str, object]] = self.options.model_dump()
        found = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_LIBRARIES) and not name.endswith("_FILE")
        }
        return [
            *self._secrets().values(),
            *(secret for each in options.values() for secret in secrets_in(each)),
            *(secret for each in self.catalogs.values() for secret in secrets_in(each)),
            *(_password(each.get("uri")) for each in self.catalogs.values()),
            *secrets_in(found),
        ]

    def _secrets(self) -> dict[str, str]:
        given = {name: getattr(self, name) for name in SECRETS}
        return {name: value.get_secret_value() for name, value in given.items() if value}


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")
_FORM = "host:port,host:port, and once, at the end, a /path to live under if you like"
_HIGHEST_PORT = 65535


def _node_path(path: str) -> str:
    if not path.startswith("/") or not all(map(_is_name, path[1:].split("/"))):
        message = "a path such as /headrace, whose parts print and are not empty, '.' or '..'"
        raise ValueError(message)
    return path


_NodePath = Annotated[str, AfterValidator(_node_path)]


class ZooKeeperConfig(Section):
    """`[zookeeper]`: the store of the offsets, and who may read them."""

    hosts: str = Field(description="host:port,host:port")
    root: _NodePath = "/headrace"
    session_timeout_seconds: PositiveFloat = 10.0
    auth: Literal["none", "digest", "sasl"] = "none"
    username: Annotated[str | None, Field(validate_default=True)] = None
    password: Annotated[SecretStr | None, Field(validate_default=True)] = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Annotated[Path | None, Field(validate_default=True)] = None
    acl: Literal["open", "creator"] | None = None

    @field_validator("hosts")
    @classmethod
    def _hosts_have_their_form(cls, hosts: str) -> str:
        servers, slash, chroot = hosts.partition("/")
        if not all(map(_is_server, servers.split(","))):
            raise ValueError(_FORM)
        if slash and ("," in chroot or not all(map(_is_name, chroot.split("/")))):
            raise ValueError(_FORM)
        return hosts

    @field_validator("username", "password")
    @classmethod
    def _goes_with_auth(cls, value: Any, info: ValidationInfo) -> Any:
        auth = info.data.get("auth")
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if auth == "none" and text is not None:
            raise ValueError('nothing while auth = "none"; with it, auth = "digest" or "sasl"')
        if auth in ("digest", "sasl") and not text:
            raise ValueError(f'a string that is not empty, as auth = "{auth}" needs it')
        if info.field_name == "username" and ":" in (text or ""):
            raise ValueError("a name without ':', which separates it from the password")
        return value

    @field_validator("tls_ca")
    @classmethod
    def _authority_is_readable(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        _check_goes_with_tls(path, info)
        allowed = "a readable PEM file with the certificates of authorities to trust"
        if path is not None:
            try:
                _context().load_verify_locations(path)
            except OSError as error:  # ssl.SSLError is one too
                raise ValueError(f"{allowed} ({_reason(error)})") from None
        return path

    @field_validator("tls_cert")
    @classmethod
    def _certificate_goes_with_tls(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        _check_goes_with_tls(path, info)
        if path is not None and not path.is_file():
            raise ValueError("a readable PEM file with this client's certificate (no such file)")
        return path

    @field_validator("tls_key")
    @classmethod
    def _key_is_the_certificates(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        _check_goes_with_tls(path, info)
        if "tls_cert" not in info.data:
            return path  # its own fault is told
        certificate: Path | None = info.data["tls_cert"]
        if path is None and certificate is None:
            return path
        allowed = "the PEM file, without passphrase, of the private key of tls_cert"
        if path is None:
            raise ValueError(allowed)
        if certificate is None:
            raise ValueError("nothing while tls_cert is absent")
        try:
            _context().load_cert_chain(certificate, path, password="")
        except OSError as error:
            raise ValueError(f"{allowed} ({_reason(error)})") from None
        return path

    @field_validator("acl")
    @classmethod
    def _creator_is_somebody(cls, acl: str | None, info: ValidationInfo) -> str | None:
        known = info.data.get("auth") != "none" or info.data.get("tls_cert") is not None
        if acl == "creator" and not known:
            message = "'creator' only with auth = \"digest\" or \"sasl\", or a tls_cert; 'open'"
            raise ValueError(message)
        return acl

    def security(self) -> ZooKeeperSecurity:
        return ZooKeeperSecurity(
            auth=self.auth,
            username=self.username or "",
            password=self.password.get_secret_value() if self.password else "",
            acl=self.acl or ("open" if self.auth == "none" else "creator"),
            tls=self.tls,
            ca=self.tls_ca,
            certificate=self.tls_cert,
            key=self.tls_key,
        )

    def secrets(self) -> list[str]:
        return [self.password.get_secret_value()] if self.password else []


def _is_server(text: str) -> bool:
    match = _HOST.fullmatch(text)
    return match is not None and (match[2] is None or 0 < int(match[2]) <= _HIGHEST_PORT)


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and text.isprintable()


def _check_goes_with_tls(path: Path | None, info: ValidationInfo) -> None:
    if path is not None and info.data.get("tls") is False:
        raise ValueError("nothing while tls = false")


def _context() -> ssl.SSLContext:
    """Return a context as kazoo makes it for a connection."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _reason(error: OSError) -> Any:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error)
