"""Errors of topologies, bolts and sinks."""

from collections.abc import Mapping


class TopologyError(Exception):
    """Base class of errors of topologies, bolts and sinks."""


class InvalidTopology(TopologyError):
    """The topology cannot run."""


def expect(is_met: object, place: str, found: object, expected: str) -> None:
    """Raise InvalidTopology unless the condition is met: not every user runs a type checker."""
    if not is_met:
        raise InvalidTopology(f"{place}: found {found!r}, expected {expected}")


class InvalidReference(InvalidTopology):
    """A reference table is declared wrongly."""


class InvalidSchema(InvalidTopology):
    """A row type has no schema, or a sink cannot write it."""


class ReferenceLoadFailed(TopologyError):
    """A reference table could not be loaded."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"reference '{reference}': {reason}")
        self.reference = reference
        self.reason = reason


class AggregateFailed(TopologyError):
    """Values of a state cannot be merged or changed; permanent."""


class BoltError(TopologyError):
    """A bolt broke its contract. The record is not retried."""


class NothingReturned(BoltError):
    """A bolt returned None instead of a value or SKIP."""

    def __init__(self, step: str) -> None:
        super().__init__(f"bolt '{step}' returned None, expected a value, or SKIP to drop it")
        self.step = step


class LineageLost(BoltError):
    """A vectorised bolt returned rows whose records are unknown."""


class ReferenceNotLoaded(BoltError):
    """A look-up came before the reference table was loaded."""

    def __init__(self, reference: str) -> None:
        super().__init__(
            f"reference '{reference}' is not loaded. Name it in topology.uses(...), "
            "or fill it by load(rows) in a test"
        )
        self.reference = reference


class SinkError(TopologyError):
    """A sink could not write."""


class RowsRejected(SinkError):
    """Some rows of a batch do not fit the sink; all others are durable."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} rows do not fit the sink")
        self.reasons = dict(reasons)


class SinkBusy(SinkError):
    """Nothing was written; the same batch may be retried later."""

    def __init__(self, after_seconds: float, reason: str = "") -> None:
        because = f" ({reason})" if reason else ""
        super().__init__(f"the sink is busy{because}; try again in {after_seconds} seconds")
        self.after_seconds = after_seconds
        self.reason = reason


class SinkFenced(SinkError):
    """A later owner of the line has fenced this one; nothing was done."""

    def __init__(self, line: str, epoch: int, found: int) -> None:
        super().__init__(f"{line} under epoch {epoch} has been taken over under epoch {found}")
        self.line = line
        self.epoch = epoch
        self.found = found


class SinkFailed(SinkError):
    """The sink failed permanently."""


def missing_extra(what: str, extra: str) -> str:
    """Return the message of missing packages, with the command that installs them."""
    return f'{what}, which is not installed: pip install "headrace[{extra}]"'
