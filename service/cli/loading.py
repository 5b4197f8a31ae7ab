"""Finds what a command is told: the topology that MODULE:TOPOLOGY names, and the configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service import logs
from service.config import Config, load
from service.loading import load_topology

__all__ = ["configured", "load_topology"]


def configured(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Load the configuration, and have logs written as it says. Raises BadConfig."""
    settings = load(path, overrides)
    logs.configure(settings.logs.level, settings.logs.format, settings.secrets())
    return settings
