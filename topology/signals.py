"""What a bolt says besides returning a value. Signals are no errors."""

from typing import Final, final


@final
class Skip:
    """The type of SKIP."""

    def __repr__(self) -> str:
        return "SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP: Final = Skip()
"""Return this to drop a record on purpose: it is counted as filtered and completed."""


class Reject(Exception):
    """Raise this for a record that no retry can help: it goes to the dead letters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):
    """Raise this to have the record tried again, after `after_seconds` if given.

    It counts against the retry limit like any failure.
    """

    def __init__(self, reason: str, *, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_seconds = after_seconds
