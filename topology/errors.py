"""Errors of topologies, bolts and sinks.

TopologyError
├── InvalidTopology      the graph itself is wrong; named at build time
│   ├── InvalidReference
│   └── InvalidSchema    a type of rows gives no columns, or a sink cannot write them
├── ReferenceLoadFailed  a reference table cannot be read, or has other rows than it may
├── AggregateFailed      values of a state cannot be merged or changed
├── BoltError            a bolt broke the rules of its contract
│   ├── NothingReturned
│   ├── LineageLost
│   └── ReferenceNotLoaded
└── SinkError
    ├── RowsRejected     some rows do not fit; the others are durable
    ├── SinkBusy         nothing was written; come later
    ├── SinkFenced       another owner of a line has taken over
    └── SinkFailed       trying again cannot help
"""

from collections.abc import Mapping


class TopologyError(Exception):
    """Something is wrong in the topology."""


class InvalidTopology(TopologyError):
    """The topology cannot run as it is drawn."""


class InvalidReference(InvalidTopology):
    """A reference table cannot be what it is said to be."""


class InvalidSchema(InvalidTopology):
    """A type of rows gives no columns, or a sink cannot write them."""


class ReferenceLoadFailed(TopologyError):
    """A reference table could not be loaded."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"reference '{reference}': {reason}")
        self.reference = reference
        self.reason = reason


class AggregateFailed(TopologyError):
    """Values of a state cannot be merged or changed, and trying again cannot help."""


class BoltError(TopologyError):
    """A bolt broke the rules of its contract."""


class NothingReturned(BoltError):
    """A bolt returned None: return a value, or SKIP to drop the record on purpose."""

    def __init__(self, step: str) -> None:
        super().__init__(
            f"bolt '{step}' returned None; return a value, or SKIP to drop the record on purpose"
        )
        self.step = step


class LineageLost(BoltError):
    """A vectorised bolt returned rows whose records cannot be told."""


class ReferenceNotLoaded(BoltError):
    """A reference table was looked into before it was loaded."""

    def __init__(self, reference: str) -> None:
        super().__init__(
            f"reference '{reference}' is not loaded; name it in topology.uses(...), "
            "or fill it by load(rows) in a test"
        )
        self.reference = reference


class SinkError(TopologyError):
    """A sink could not write."""


class RowsRejected(SinkError):
    """Some rows of a batch do not fit the sink; all the others are durable."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} rows do not fit the sink")
        self.reasons = dict(reasons)


class SinkBusy(SinkError):
    """The sink asks for the same batch again later; nothing of it was written."""

    def __init__(self, after_seconds: float, reason: str = "") -> None:
        """A `reason` says what someone should look into if it lasts."""
        because = f" ({reason})" if reason else ""
        super().__init__(f"the sink is busy{because}; try again in {after_seconds} seconds")
        self.after_seconds = after_seconds
        self.reason = reason


class SinkFenced(SinkError):
    """A sink refuses a line's owner, because there has been a later one; nothing was done."""

    def __init__(self, line: str, epoch: int, found: int) -> None:
        super().__init__(f"{line} under epoch {epoch} has been taken over under epoch {found}")
        self.line = line
        self.epoch = epoch
        self.found = found


class SinkFailed(SinkError):
    """The sink cannot work, and trying again cannot help."""


def missing_extra(what: str, extra: str) -> str:
    """Say that packages are not installed, with the command that installs them."""
    return f'{what}, which is not installed: pip install "headrace[{extra}]"'
