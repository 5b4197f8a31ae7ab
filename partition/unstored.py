"""How far the stored offset is behind what was emitted: what a crash would repeat."""


class Unstored:
    """The offset that is stored, and how many records were read behind it. The owner drives it.

    Records are counted, not offsets, because gaps cost nothing. Pure.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """The frontier that was stored last."""
        self.read = 0
        """Records that were emitted here, or done elsewhere, since the start."""
        self._read_below = 0  # how many of them lie below `offset`
        self._submitted = (offset, 0)  # one that is on its way, and the same of it

    @property
    def unstored(self) -> int:
        """Records read behind the offset that is stored."""
        return self.read - self._read_below

    @property
    def submitted(self) -> int:
        """The offset that was submitted last."""
        return self._submitted[0]

    def submit(self, offset: int, *, behind: int) -> None:
        """Learn that an offset is on its way; so many of the records read lie `behind` it."""
        self._submitted = (offset, self.read - behind)

    def mark(self, offset: int) -> None:
        """Learn that an offset is stored."""
        self.offset = max(self.offset, offset)
        if offset == self._submitted[0]:
            self._read_below = max(self._read_below, self._submitted[1])

    def restart(self, offset: int) -> None:
        """Go on from an offset that is stored already."""
        self.offset = offset
        self._read_below = self.read

    def forget_submitted(self, offset: int) -> None:
        """Take nothing that is on its way for what goes on from this offset."""
        self._submitted = (offset, 0)
