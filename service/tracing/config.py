"""`[tracing]`: whether records are traced, and where their spans go."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from service.section import Section


class TracingConfig(Section):
    """`[tracing]`: spans of records for a collector of OpenTelemetry's; off without an endpoint.

    A record with a sampled `traceparent` among its headers is traced; of those without one,
    `sample_ratio`. `headers` go with each request, best from the variable
    `HEADRACE_TRACING__HEADERS`, as they hold secrets.
    """

    endpoint: str | None = Field(
        default=None, description="OTLP over HTTP, such as http://collector:4318/v1/traces"
    )
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    service_name: str = "headrace"
    headers: SecretStr | None = Field(default=None, description="name=value,name=value")

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_a_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None:
            parts = urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
                message = "http:// or https://, a host, and no user; secrets go into 'headers'"
                raise ValueError(message)
        return endpoint

    @field_validator("headers")
    @classmethod
    def _headers_have_their_form(cls, headers: SecretStr | None) -> SecretStr | None:
        text = "" if headers is None else headers.get_secret_value()
        if text and not all(part.partition("=")[0].strip() for part in text.split(",")):
            message = "name=value,name=value"
            raise ValueError(message)
        if not text.isascii() or not text.isprintable():
            message = "printable ASCII characters"
            raise ValueError(message)
        return headers

    def pairs(self) -> dict[str, str]:
        """The headers by name."""
        text = "" if self.headers is None else self.headers.get_secret_value()
        parts = [part.partition("=") for part in text.split(",") if part]
        return {name.strip(): value.strip() for name, _, value in parts}

    def secrets(self) -> list[str]:
        """Values that must not be shown anywhere."""
        text = "" if self.headers is None else self.headers.get_secret_value()
        return [each for each in (text, *self.pairs().values()) if each]
