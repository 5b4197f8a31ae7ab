"""The delivery modes of the guarantees: what a partition may emit, and what is stored of it."""

from dataclasses import replace
from typing import Any

from partition.delivery import AtLeastOnce, CommitBeforeEmit, DeliveryFactory
from partition.interfaces import TopicName
from partition.ledger import CommitProgress, Ledger
from partition.records import Partition, Resumed
from topology.steps import SinkStep
from topology.topology import Topology
from transactions.partition_transactions import PartitionTransactions, TransactionPolicy


def policy_of(topology: Topology, policy: TransactionPolicy) -> TransactionPolicy:
    """`policy`, but no more is planned at once than a batch takes: it is committed as a whole."""
    rows = min(step.policy.batch_rows for step in _sinks(topology))
    return replace(policy, plan_records=min(policy.plan_records, rows))


def delivery_of(topology: Topology, policy: TransactionPolicy) -> DeliveryFactory[Any]:
    """What makes the mode of a partition; of one that is exactly once by `policy`.

    Where a source has a rate, no more is put into a transaction than may be emitted while a
    batch fills: else its commit would wait for the last of it.
    """
    if topology.reliability == "at-most-once":
        return CommitBeforeEmit
    if topology.reliability == "at-least-once":
        return AtLeastOnce
    seconds = min(step.policy.batch_seconds for step in _sinks(topology))

    def make(
        partition: Partition, ledger: Ledger, progress: CommitProgress, resumed: Resumed | None
    ) -> PartitionTransactions:
        rate = topology.source_of(partition.topic).records_per_second
        records = policy.records if rate is None else max(1, int(rate * seconds))
        cut = replace(policy, records=min(policy.records, records))
        return PartitionTransactions(partition, ledger, progress, resumed, cut)

    return make


def _sinks(topology: Topology) -> list[SinkStep]:
    return [step for step in topology.steps() if isinstance(step, SinkStep)]


def limits_of(topology: Topology) -> dict[TopicName, float]:
    """The rate limits of a topology's sources."""
    return {
        source.topic: source.records_per_second
        for source in topology.sources
        if source.records_per_second is not None
    }
