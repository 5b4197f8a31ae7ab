"""Rows on their way from a task to the driver, for sinks of which only the driver can stage."""

import hashlib
import pickle
import uuid
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from partition.records import Offsets
from topology.errors import SinkFailed
from topology.sink import Batch, Piece, Staged


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file with a group's rows; it is the only part of what a SpoolStager stages.

    The digest comes to the driver with the task's result, over Spark's own connection: whoever
    can write the folder cannot change it.
    """

    path: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class _Columns:
    """A RecordBatch as an Arrow stream: pickled by itself, a slice takes its whole parent along."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SpoolStager:
    """A `Stager` that writes each group into a file of its own in a folder.

    The folder is a local path that tasks and driver share. Rows are pickled, so their classes
    must be importable at both ends.
    """

    folder: str

    def stage(self, group: Batch) -> Staged:
        """Write the rows; every one fits. Raises OSError, SinkFailed if one cannot be pickled."""
        if group.offsets is None:
            raise ValueError(f"group {group.sequence} does not tell of which records its rows are")
        pieces = [_packed(piece) for piece in group.pieces]
        try:
            data = pickle.dumps((pieces, group.offsets), protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            message = f"rows cannot be pickled on their way to the driver: {error}"
            raise SinkFailed(message) from error
        path = Path(self.folder) / f"{uuid.uuid4().hex}.rows"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data)
        part = SpoolFile(str(path), digest_of(data))
        return Staged(group.shares, group.num_rows, (part,))

    def discard(self, staged: Staged) -> None:
        """Remove the file, if it is there."""
        for part in staged.parts:
            Path(part.path).unlink(missing_ok=True)


class SpoolChanged(OSError):
    """A file is not as its task wrote it."""


def digest_of(data: bytes) -> bytes:
    """The SHA-256 by which the driver knows a file as its task wrote it."""
    return hashlib.sha256(data).digest()


def read_spool(staged: Staged) -> tuple[list[Piece], Offsets]:
    """The rows of what a SpoolStager has staged, in their order, and each one's record's offset.

    Raises OSError: SpoolChanged before a file is unpickled that no task of ours has written.
    """
    pieces: list[Piece] = []
    offsets = [np.empty(0, np.int64)]
    for part in staged.parts:
        with Path(part.path).open("rb") as file:
            data = file.read()
        if digest_of(data) != part.digest:
            raise SpoolChanged(f"{part.path} is not as its task wrote it")
        packed, its_offsets = pickle.loads(data)  # noqa: S301 - a task of ours wrote it
        pieces += [_unpacked(each) for each in packed]
        offsets.append(its_offsets)
    return pieces, np.concatenate(offsets)


def read_lines(staged: Staged) -> dict[str, tuple[list[Piece], Offsets]]:
    """The same by line; of a line with several shares, one after the other."""
    pieces, offsets = read_spool(staged)
    by_line: defaultdict[str, tuple[list[Piece], list[Offsets]]] = defaultdict(lambda: ([], []))
    rest = iter(pieces)
    start = 0
    for share in staged.shares:
        its_pieces, its_offsets = by_line[share.line]
        end = start + share.num_rows
        its_offsets.append(offsets[start:end])
        while start < end:  # no piece has rows of two shares
            piece = next(rest)
            its_pieces.append(piece)
            start += len(piece)
    return {line: (found, np.concatenate(of)) for line, (found, of) in by_line.items()}


def _packed(piece: Piece) -> Any:
    if not isinstance(piece, pa.RecordBatch):
        return piece
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.schema) as writer:
        writer.write_batch(piece)
    return _Columns(sink.getvalue().to_pybytes())


def _unpacked(packed: Any) -> Piece:
    if not isinstance(packed, _Columns):
        rows: list[Any] = packed
        return rows
    with pa.ipc.open_stream(packed.data) as reader:
        return reader.read_next_batch()
