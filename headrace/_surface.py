"""Every name of `headrace`, imported when the first one is used."""

from partition.ledger import RetryPolicy
from topology.advanced import AdvancedBolt, Collector, Tuple
from topology.bolt import Bolt, Hooks, bolt
from topology.cache import Cache, CacheStatistics
from topology.errors import (
    BoltError,
    InvalidReference,
    InvalidTopology,
    LineageLost,
    NothingReturned,
    ReferenceLoadFailed,
    ReferenceNotLoaded,
    RowsRejected,
    SinkBusy,
    SinkFailed,
    SinkFenced,
)
from topology.grouping import (
    Grouping,
    all_tasks,
    custom,
    direct,
    fields,
    global_,
    shuffle,
    stable_hash,
)
from topology.record import SKIP, Record, Reject, RejectRows, Retry, Skip, To
from topology.reference import Reference, reference
from topology.topology import Topology

__all__ = [
    "SKIP",
    "AdvancedBolt",
    "Bolt",
    "BoltError",
    "Cache",
    "CacheStatistics",
    "Collector",
    "Grouping",
    "Hooks",
    "InvalidReference",
    "InvalidTopology",
    "LineageLost",
    "NothingReturned",
    "Record",
    "Reference",
    "ReferenceLoadFailed",
    "ReferenceNotLoaded",
    "Reject",
    "RejectRows",
    "Retry",
    "RetryPolicy",
    "RowsRejected",
    "SinkBusy",
    "SinkFailed",
    "SinkFenced",
    "Skip",
    "To",
    "Topology",
    "Tuple",
    "all_tasks",
    "bolt",
    "custom",
    "direct",
    "fields",
    "global_",
    "reference",
    "shuffle",
    "stable_hash",
]
