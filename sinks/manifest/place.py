"""The folder that a manifest's table is in."""

import os
import uuid
from pathlib import Path

from topology.errors import SinkFailed


def check_kind(table: str, folder: Path) -> None:
    """Raise SinkFailed when the folder is a table of another kind."""
    if (folder / "_delta_log").exists():
        raise SinkFailed(f"table '{table}' at {folder} is a Delta table; use DeltaSink")
    metadata = folder / "metadata"
    if (metadata / "version-hint.text").exists() or any(metadata.glob("*.metadata.json")):
        raise SinkFailed(f"table '{table}' at {folder} is an Iceberg table; use IcebergSink")


def try_out(folder: Path) -> None:
    """Write a file and link it, as the log will. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".headrace-{uuid.uuid4().hex}"
    link = draft.with_name(f"{draft.name}-link")
    try:
        draft.touch()
        os.link(draft, link)
    finally:
        draft.unlink(missing_ok=True)
        link.unlink(missing_ok=True)
