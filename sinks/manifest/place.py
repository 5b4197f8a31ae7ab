"""The folder that a manifest's table is in."""

import os
import uuid
from pathlib import Path


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
