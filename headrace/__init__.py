"""The public surface of Headrace: all that a user imports."""

from headrace import _shadow as _shadow  # first: a foreign room must not be imported
from topology.bolt import Bolt, bolt
from topology.errors import InvalidTopology, RowsRejected, SinkBusy, SinkFailed
from topology.record import Record
from topology.signals import SKIP, Reject, Retry, Skip
from topology.topology import Topology

__all__ = [
    "SKIP",
    "Bolt",
    "InvalidTopology",
    "Record",
    "Reject",
    "Retry",
    "RowsRejected",
    "SinkBusy",
    "SinkFailed",
    "Skip",
    "Topology",
    "bolt",
]
