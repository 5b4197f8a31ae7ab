"""What a sink promises that makes rows durable exactly once.

A line is a run of transactions that are numbered together, 1, 2, 3, …: those of one partition.
A share is one line's transaction; a group is the shares that one commit makes durable together.
Under one (line, txid) come the same records whatever happens ("transactional"), or, if the sink
has not committed it, perhaps others ("opaque"; Trident's words).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from topology.sink import Piece, Sink
from topology.traced import RowTraces

Row = TypeVar("Row", contravariant=True)
Kind: TypeAlias = Literal["transactional", "opaque"]


class Fence(NamedTuple):
    """An owner of a line: whoever has a lower epoch may commit no more."""

    line: str  # "orders[3]"
    epoch: int


class Committed(NamedTuple):
    """The last transaction of a line that a sink has; 0, 0: it knows nothing of the line."""

    line: str
    epoch: int
    txid: int


@dataclass(frozen=True, slots=True)
class Share:
    """One line's transaction, as one sink gets it."""

    line: str
    epoch: int
    txid: int
    attempt: int
    first: int  # offsets from here
    end: int  # up to before this one
    digest: str
    num_rows: int


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of some shares, one share's after the other's, in the order of `shares`.

    `number` counts 1, 2, 3, … per sink and process; a row's index is its place in the
    concatenation of `pieces`. `offsets` tells of each row which record it came of, in its
    share's partition; None: it is not told.
    """

    number: int
    shares: tuple[Share, ...]
    pieces: list[Piece]
    num_rows: int
    offsets: npt.NDArray[np.int64] | None = None
    traces: RowTraces = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Staged:
    """A group that is ready for its commit; `parts` are the sink's own (files, rows)."""

    shares: tuple[Share, ...]
    num_rows: int
    parts: tuple[Any, ...] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)  # row: why it does not fit


class TransactionalSink(Sink[Row]):
    """A sink that can make each transaction's rows durable once.

    `fence`, `committed` and `commit` are called by the sink's commit thread, `stage` and
    `discard` by its staging thread, `open` and `close` by the owner. `write` stays what it is
    for topologies that are not exactly-once.
    """

    kinds: frozenset[Kind] = frozenset({"transactional", "opaque"})
    """Which kinds of transactions it keeps."""

    commits_by_share: bool = False
    """Whether the shares of a group become durable one after the other.

    So each row must be known to be of its share, which it is not behind a Spark step.
    """

    @abstractmethod
    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs of lines durably, then say what is committed of each, in order.

        From then on no commit under a lower epoch has any effect. May be repeated. Raises
        SinkFenced when a line's epoch is higher already.
        """

    @abstractmethod
    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Say what is committed of each line; nothing is changed."""

    @abstractmethod
    def stage(self, group: Group) -> Staged:
        """Make the rows ready, not visible; those that do not fit are named and left out.

        May be repeated, and what it made may be lost without harm.
        """

    @abstractmethod
    def commit(self, staged: Staged) -> None:
        """Make all rows and every share's txid durable at once, or nothing.

        Does nothing when every share is committed already. Raises SinkFenced when a line's
        epoch is higher than its share's, SinkBusy when nothing was done, and SinkFailed when
        trying again cannot help, or only some of the shares are committed; after anything else
        it is not known whether it is committed.
        """

    @abstractmethod
    def discard(self, staged: Staged) -> None:
        """Learn that this will not be committed: what was made for it may go."""


class Stager(Protocol):
    """Stages groups in another process, for a sink that then commits them here.

    It can be pickled, and asks nothing of the table's log. Any thread may call it, one at a time.
    """

    def stage(self, group: Group) -> Staged:
        """As the sink's own; what `parts` hold can be pickled too."""
        ...

    def discard(self, staged: Staged) -> None:
        """As the sink's own."""
        ...


class StagesApart(TransactionalSink[Row]):
    """A sink of transactions whose rows other processes can make ready where the table lies."""

    @abstractmethod
    def stager(self) -> Stager | None:
        """What stages for the table as it is now; None: only this process can.

        The owner thread asks, after a fence.
        """

    @abstractmethod
    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        """What stagers made as one group, for `commit` or `discard`; in the order of the rows.

        Raises SinkFailed when this process does not find what they have made.
        """
