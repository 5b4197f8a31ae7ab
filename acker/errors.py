"""What can go wrong in the acker room.

AckerError
└── TooManyTrees     the bound on trees in flight is reached
"""


class AckerError(Exception):
    """Something is wrong in the acker."""


class TooManyTrees(AckerError):
    """More trees are in flight than the acker was allowed to hold."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} trees are in flight; no more are allowed")
        self.limit = limit
