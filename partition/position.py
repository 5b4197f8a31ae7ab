"""Where to read on in a partition, and what the log was when that was learnt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """The resume key: an offset means a record only within one incarnation of a log.

    A topic that was deleted and created again has another topic id (KIP-516); a log that
    was cut off has a later leader epoch from an earlier offset on (KIP-101).
    """

    offset: int  # the next to read
    # Of the record before it, or, where none was read, of the leader then; None: not known.
    leader_epoch: int | None = None
    topic_id: str | None = None  # None: not known
