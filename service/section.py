"""One table of the configuration."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict

from service.redaction import redacted


class Section(BaseModel):
    """One table of the file. Unknown keys are errors, values never change, no secret is shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """What `repr` and `str` show."""
        return hidden(super().__repr_args__())


def hidden(fields: Iterable[tuple[str | None, Any]]) -> list[tuple[str | None, Any]]:
    """The fields of a table, without what properties in them hold of secrets."""
    return [(name, redacted(value, name or "")) for name, value in fields]
