"""Few large files in place of many small ones: what a table's sink can be asked for."""

from typing import NamedTuple, Protocol, runtime_checkable


class Compaction(NamedTuple):
    """What a compaction did: so many files were replaced by so many. 0, 0: nothing was to do."""

    files_replaced: int
    files_written: int
    bytes_written: int


@runtime_checkable
class Compactable(Protocol):
    """A sink whose table is made of files, which may become too many."""

    def compact(self, target_bytes: int) -> Compaction:
        """Join files that are much smaller than `target_bytes` into ones of about that size.

        Needs an open sink. One commit of its own, which changes no row and no line, so it may
        run beside a running pipeline: whoever commits first wins, and this is tried again.
        Raises SinkBusy when others kept winning, SinkFailed when the table cannot be compacted.
        """

    def data_files(self) -> list[str]:
        """The files that make up the table now, as absolute paths or URIs."""
