"""State: values by key that outlive the run, and what they are made of."""

from sinks.postgres.state import PostgresState
from sinks.state.delta_state import DeltaState
from sinks.state.store import MemoryState, StateStore
from topology.aggregates import Aggregate, combiner, count, least, most, reducer, total
from topology.errors import AggregateFailed
from topology.state import Shape, State

__all__ = [
    "Aggregate",
    "AggregateFailed",
    "DeltaState",
    "MemoryState",
    "PostgresState",
    "Shape",
    "State",
    "StateStore",
    "combiner",
    "count",
    "least",
    "most",
    "reducer",
    "total",
]
