"""A warehouse, and a table's folder in it, that can be written."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topology.errors import SinkFailed


@contextmanager
def needing_to_write(table: str, warehouse: str) -> Iterator[None]:
    """Raise SinkFailed, naming the table, for an OSError within."""
    try:
        yield
    except OSError as error:
        raise SinkFailed(
            f"table '{table}' in warehouse {warehouse}: {error}; "
            "a folder that can be written is needed"
        ) from error


def try_out(folder: Path) -> None:
    """Make the folder, and write into it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
