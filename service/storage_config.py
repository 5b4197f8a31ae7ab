"""`[storage]`: where tables lie, and how that store is reached."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from service.section import Section
from service.variables import PREFIX, flat
from sinks.names import is_uri
from sinks.storage import SECRETS, Storage
from topology.masking import secrets_in

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
        message = "http://host:port or https://host:port"
        raise ValueError(message)
    return url.rstrip("/") if url else None


def _authorities(path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        message = "a PEM file with the authorities to trust (no such file)"
        raise ValueError(message)
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
    """`[storage]`: where tables lie, and how that store is reached."""

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
            message = "access_key_id and secret_access_key, both or neither"
            raise ValueError(message)
        return secret

    def storage(self) -> Storage:
        """The sinks' own object; a warehouse that is a path is made absolute."""
        variables = {name: f"{PREFIX}STORAGE__{name.upper()}__FILE" for name in SECRETS}
        return Storage(
            warehouse=(
                self.warehouse if is_uri(self.warehouse) else str(Path(self.warehouse).resolve())
            ),
            endpoint=self.endpoint,
            region=self.region,
            path_style=self.path_style,
            ca_file=None if self.ca_file is None else str(self.ca_file),
            secrets=self._secrets(),
            secret_files={
                name: os.environ[variable]
                for name, variable in variables.items()
                if variable in os.environ
            },
            options=self.options.model_dump(),
            catalogs=self.catalogs,
        )

    def secrets(self) -> list[str]:
        """Values that must not be shown anywhere, those that libraries find themselves too."""
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
