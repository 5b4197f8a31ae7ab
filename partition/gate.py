"""What a partition's records pass before they are emitted, where transactions are kept."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets, Partition
from partition.errors import PartitionError
from partition.position import Position
from partition.transaction import Resumed, Transactions


class Gate(Protocol):
    """Says which of a partition's waiting records may be emitted: those in a stored range.

    The owner thread calls everything.
    """

    @property
    def open_to(self) -> int:
        """Records below this offset may be emitted."""

    @property
    def ends_at(self) -> int:
        """Where the transaction ends that is being emitted: no chunk reaches beyond."""

    @property
    def is_shut(self) -> bool:
        """Whether more records are of no use before a transaction is committed.

        They cannot be planned then, and no transaction that is replayed lacks any.
        """

    @property
    def begins_at(self) -> int | None:
        """Where the lowest open transaction begins: the offset to store; None: none is open."""

    @property
    def awaits_commit(self) -> bool:
        """Whether the lowest open transaction can still be committed without more of the log."""

    def offered(
        self,
        offsets: Offsets,
        lengths: npt.NDArray[np.int64],
        leader_epochs: tuple[tuple[int, int], ...],
    ) -> None:
        """Learn of records that wait from now on."""

    def reached(self, end: int) -> None:
        """Learn that the log has no record before `end` but those offered."""

    def emitted(self, count: int) -> None:
        """Learn that the next so many of them were emitted for the first time."""

    @property
    def is_due(self) -> bool:
        """Whether something is to be stored, and should not wait for the commit interval."""

    @property
    def has_to_store(self) -> bool:
        """Whether `to_store` is another than what `stored` told last; True at first."""

    def to_store(self) -> Transactions:
        """What must stand in the node now."""

    def stored(self, transactions: Transactions) -> None:
        """Learn that it does."""

    def differs(self) -> PartitionError | None:
        """Why the partition must halt: the log gave others than the records of a stored range."""

    def resumed_at(self, position: Position) -> Resumed:
        """What the gate after this one is made of, where the log goes on elsewhere."""

    def lost_records(self) -> PartitionError | None:
        """Why the log may not go on elsewhere: records of a stored range are gone with it.

        None if no transaction is to be replayed.
        """


MakeGate = Callable[[Partition, Resumed, Callable[[], int]], Gate]
"""Makes a partition's gate; the last argument tells how many more records have room."""
