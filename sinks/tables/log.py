"""The log of a table, as the template reads it and commits to it; its types and ids."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from sinks.columns import with_leaves
from sinks.tables.files import DataFile, FileStager
from topology.errors import SinkFailed
from topology.sink import Committed, Compaction, Removal, Share

_TXID_BITS = 32
_LAST_TXID = (1 << _TXID_BITS) - 1
_LAST_EPOCH = (1 << (63 - _TXID_BITS)) - 1


class Conflict(Exception):
    """Somebody else committed first; nothing was done."""


@dataclass(frozen=True, slots=True)
class TableState:
    """One read of the log. A commit is based on it."""

    table_id: str  # another one: the table was removed and made anew
    version: int  # of the log; grows with each commit
    schema: pa.Schema
    partition_by: tuple[str, ...]
    native: Any = None  # the library's own handle of that version

    def is_like(self, other: "TableState") -> bool:
        """Whether files that were written for the one can be added to the other."""
        mine, theirs = (self.table_id, self.partition_by), (other.table_id, other.partition_by)
        return mine == theirs and self.schema.equals(other.schema)


class StoredFile(NamedTuple):
    """A file that the table's newest version names."""

    path: str  # absolute, or a URI
    num_bytes: int
    partition: object  # to tell apart the files that cannot be joined


class TableLog(ABC):
    """The log of one table; used by one thread at a time.

    An error that is neither Conflict nor SinkFailed is an unknown outcome: it is read back.
    """

    name: str
    """The table's, in errors."""

    ends_at_once: bool = False
    """Whether a commit that has raised, and is not there, never will be: so on local disks. On a
    store the request may still be under way, until another version is in its place."""

    @abstractmethod
    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of a table made for these rows. Raises InvalidSchema."""

    @abstractmethod
    def read(self) -> TableState | None:
        """Return the newest version, None where there is no table.

        Raises SinkFailed when the library cannot write the table ("use SparkSink"), or the log
        has changed under us other than by commits.
        """

    def read_again(self) -> TableState:
        """Return the version that a commit of ours has made, or a later one."""
        state = self.read()
        if state is None:
            raise SinkFailed(f"table '{self.name}' was removed while it was written")
        return state

    @abstractmethod
    def stager(self, state: TableState, schema: pa.Schema) -> FileStager:
        """Return the stager of rows of this schema for the table as it is."""

    @abstractmethod
    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> TableState:
        """Make the table. Raises Conflict when there is one by now."""

    @abstractmethod
    def add_columns(self, state: TableState, fields: "Sequence[pa.Field[Any]]") -> TableState:
        """Add columns at the end. Raises Conflict."""

    @abstractmethod
    def transactions(self, state: TableState, apps: Sequence[str]) -> dict[str, int]:
        """Return the version of each of these applications that has one; see `pack`."""

    @abstractmethod
    def commit(
        self, state: TableState, files: Sequence[DataFile], transactions: Mapping[str, int]
    ) -> TableState | None:
        """Add files and set transactions, all at once or nothing, if `state` is the newest.

        Returns the new state, or None where it must be read. Raises Conflict if `state`
        is not the newest. No files are a fence: they conflict with every other commit, too.
        """

    def turn(self, pause_seconds: float) -> AbstractContextManager[None]:
        """Keep apart from those who commit at the same time; no guarantee rests on it.

        Here by a pause of random length after a conflict; a log may hold others off instead.
        """
        time.sleep(pause_seconds * random.random())  # noqa: S311 - no secret
        return nullcontext()

    @abstractmethod
    def sync(self) -> None:
        """Make what was read and committed last survive a power cut, before it is answered."""

    @abstractmethod
    def named(self, base: int, state: TableState, paths: Collection[str]) -> set[str]:
        """Return those files that a version after `base`, up to this state's, has added."""

    @abstractmethod
    def files(self, state: TableState) -> list[StoredFile]:
        """Return the files that make up the table."""

    @abstractmethod
    def compact(self, state: TableState, target_bytes: int) -> Compaction:
        """Join small files in one commit that changes no row. Raises Conflict."""

    @abstractmethod
    def vacuum(self, state: TableState, older_than_hours: int, *, dry_run: bool) -> Removal:
        """Remove files that no version names and that are older. Raises Conflict."""

    @abstractmethod
    def expire(self, state: TableState, *, dry_run: bool) -> Removal:
        """Remove versions that the table's properties do not keep. Raises Conflict."""

    def close(self) -> None:  # noqa: B027 - not every log has connections
        """Release connections."""


def plain_field(
    name: str, field: "pa.Field[Any]", leaf: Callable[[pa.DataType], pa.DataType]
) -> "pa.Field[Any]":
    """Return a column of the plain type; see `plain`."""
    return pa.field(name, plain(field.type, leaf), field.nullable)


def plain(kind: Any, leaf: Callable[[pa.DataType], pa.DataType]) -> Any:
    """Return a type as tables have it: UTC microseconds, no dictionaries, no ids of fields.

    `leaf` replaces a type that has no others within.
    """

    def plain_leaf(kind: Any) -> Any:
        if isinstance(kind, pa.DictionaryType):
            return plain(kind.value_type, leaf)
        if isinstance(kind, pa.TimestampType):
            return pa.timestamp("us", "UTC" if kind.tz else None)
        return leaf(kind)

    return with_leaves(kind, plain_leaf)


def app_id(pipeline: str, sink: str, line: str) -> str:
    """Return the application id of a sink's partition; no two have the same."""
    return "/".join(["headrace", *(quote(each, safe="[]") for each in (pipeline, sink, line))])


def versions_of(owner: tuple[str, str], lines: Iterable[Share | Committed]) -> dict[str, int]:
    """Return the version of each line's application. `owner` is the pipeline and the sink."""
    return {app_id(*owner, line.line): pack(line.epoch, line.txid) for line in lines}


def pack(epoch: int, txid: int) -> int:
    """Return one number in which a higher epoch always wins. Raises ValueError."""
    if not (0 <= epoch <= _LAST_EPOCH and 0 <= txid <= _LAST_TXID):
        raise ValueError(f"epoch {epoch}, txid {txid}; up to {_LAST_EPOCH}, {_LAST_TXID} have room")
    return epoch << _TXID_BITS | txid


def unpack(version: int) -> tuple[int, int]:
    """Return the epoch and the txid of a number."""
    return version >> _TXID_BITS, version & _LAST_TXID
