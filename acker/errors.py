"""What can go wrong in the acker room.

AckerError
├── TooManyTrees     the bound on trees in flight is reached
├── TimeoutTooLong   a bolt's own time-out is longer than the acker was told to expect
└── FlagsTooHigh     flags outside the bits that a tree has for them
"""


class AckerError(Exception):
    """Something is wrong in the acker."""


class TooManyTrees(AckerError):
    """More trees are in flight than the acker was allowed to hold."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} trees are in flight; no more are allowed")
        self.limit = limit


class TimeoutTooLong(AckerError):
    """A time-out is longer than the longest one that the acker was made for."""

    def __init__(self, seconds: float, longest: float) -> None:
        super().__init__(f"a time-out of {seconds} s was asked for; at most {longest} s is allowed")
        self.seconds = seconds
        self.longest = longest


class FlagsTooHigh(AckerError):
    """Flags were set that a tree has no bits for."""

    def __init__(self, flags: int, highest: int) -> None:
        super().__init__(f"a tree's flags are to be {flags}; 0 to {highest} is allowed")
        self.flags = flags
        self.highest = highest
