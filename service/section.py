"""One table of the configuration."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One table of the file. Unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
