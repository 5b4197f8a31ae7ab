"""Maintenance of a table of files: what its sink can be asked for, also while a service writes."""

from typing import NamedTuple, Protocol, runtime_checkable

MIN_AGE_HOURS = 24
"""Younger files are never removed as unnamed: a commit may be about to name them."""


class Compaction(NamedTuple):
    """Files that a compaction replaced by fewer ones. 0, 0, 0: there was nothing to do."""

    files_replaced: int
    files_written: int
    bytes_replaced: int


class Removal(NamedTuple):
    """Snapshots or entries of the log that were removed, and files."""

    versions_removed: int
    files_removed: int


class Maintenance(Protocol):
    """What can be done to a table beside a running pipeline. None of it changes a row or a txid.

    With `dry_run` nothing is changed; the answer is what would be done, for a compaction about.
    Raises SinkBusy when others kept committing first, SinkFailed when it cannot be done.
    """

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        """Join files that are smaller than `target_bytes` into ones of about that size."""

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> Removal:
        """Remove old files that the table does not name, whoever left them.

        Raises ValueError below MIN_AGE_HOURS.
        """

    def expire(self, *, dry_run: bool = False) -> Removal:
        """Remove versions that are older than the table's own properties keep them."""

    def data_files(self) -> list[str]:
        """The files that make up the table now, as absolute paths or URIs."""


@runtime_checkable
class Maintained(Protocol):
    """A sink whose table is made of files."""

    def maintenance(self) -> Maintenance:
        """The table's. Needs an open sink."""
