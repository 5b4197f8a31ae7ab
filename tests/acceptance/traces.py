"""What the process under test leaves in the folder where the test looks for it.

`TRIAL_TOPIC` names the topic, `TRIAL_FOLDER` the folder. Every file is of one process, has its
pid in its name, and outlives it when it is killed: `<kind>-<pid>`, one line for each thing.

- `trouble`: the places of the records that are trouble, one a line;
- `opened-<place>`, or `opened-all`: from when on such a record is none any more;
- `tries-<pid>`: each call in vain, with its moment of the system's monotonic clock;
- `<sink>-<pid>`: what a sink has written, one row a line. The sinks' usual name is `rows`.

A record's value is its place, "partition:offset", and a row begins with its record's place.
"""

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import Record, RowsRejected
from headrace.sinks import Sink, SinkContext, Staged

TOPIC = os.environ["TRIAL_TOPIC"]
FOLDER = Path(os.environ["TRIAL_FOLDER"])
TROUBLE = frozenset((FOLDER / "trouble").read_text().split())

_files: dict[str, int] = {}


class Lines(Sink[Any]):
    """Appends its rows to a file; rejects those that are told."""

    def __init__(self, name: str = "rows", *, rejects: Collection[str] = ()) -> None:
        self.name = name
        self._rejects = rejects

    def open(self, context: SinkContext) -> None:
        """There is nothing to open."""

    def commit(self, staged: Staged) -> None:
        rows: list[Any] = []
        for piece in staged.parts:
            rows += piece["value"].to_pylist() if isinstance(piece, pa.RecordBatch) else piece
        bad = [i for i, row in enumerate(rows) if row in self._rejects]
        note(self.name, *(row for i, row in enumerate(rows) if i not in bad))
        if bad:
            raise RowsRejected(dict.fromkeys(bad, "it is trouble"))

    def close(self) -> None:
        """There is nothing to close."""


class Trouble(Exception):
    """The record cannot be processed now."""


def note(kind: str, *lines: str) -> None:
    """Append lines to this process's file of that kind; one line is there whole, or not at all."""
    if kind not in _files:
        path = FOLDER / f"{kind}-{os.getpid()}"
        _files[kind] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    left = "".join(f"{line}\n" for line in lines).encode()
    while left:
        left = left[os.write(_files[kind], left) :]


def check(place: str) -> None:
    if place in TROUBLE and not is_opened(place):
        note("tries", f"{place} {time.monotonic()}")
        raise Trouble(place)


def is_opened(place: str) -> bool:
    return any((FOLDER / f"opened-{name}").exists() for name in (place, "all"))


def text(record: Record) -> str:
    return (record.value or b"").decode()
