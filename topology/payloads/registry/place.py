"""Where the schemas are."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from topology.errors import InvalidTopology, missing_extra
from topology.masking import mask, secrets_in

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

NOTHING: Mapping[str, Any] = MappingProxyType({})
_CLIENT = {"timeout": 10, "max.retries": 0}  # its own are: wait for ever, and three


class Registry:
    """Where the schemas are. A plain value: nothing is asked before a bolt is opened.

    `properties` are those of confluent-kafka's `SchemaRegistryClient`, any of them
    (`basic.auth.user.info`, `ssl.ca.location`, `bearer.auth.…`). Ours are `timeout` 10 seconds,
    and `max.retries` 0, because the record is tried again. `client` is a ready one instead, as
    confluent-kafka's mock in a test; it is not closed.
    """

    def __init__(
        self,
        url: str = "",
        properties: Mapping[str, Any] = NOTHING,
        *,
        client: "SchemaRegistryClient | None" = None,
    ) -> None:
        if bool(url) == (client is not None):
            raise InvalidTopology("Registry: give the url, or a client instead")
        self.url = url
        self.properties = dict(properties)  # may hold secrets: in no repr
        self.client = client

    def __repr__(self) -> str:
        return f"Registry({self.url!r})" if self.client is None else "Registry(client=…)"

    def connect(self) -> "SchemaRegistryClient":
        """Return the given client, or a new one.

        Raises ModuleNotFoundError, saying what to install, and what confluent-kafka raises for
        a property it does not know or like (ValueError, TypeError).
        """
        if self.client is not None:
            return self.client
        mask.add([*secrets_in(self.properties), urlsplit(self.url).password or ""])
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise not_installed(error) from error
        return SchemaRegistryClient.new_client({**_CLIENT, **self.properties, "url": self.url})


def not_installed(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error, saying what to install."""
    message = missing_extra(f"a schema registry needs '{error.name}'", "schema-registry")
    return ModuleNotFoundError(message, name=error.name)
