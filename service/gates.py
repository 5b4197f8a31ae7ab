"""Makes the gates of a topology's partitions: transactions of each."""

from collections.abc import Callable
from dataclasses import replace

from partition.chunk import Partition
from partition.gate import Gate, MakeGate
from partition.transaction import Resumed
from topology.steps import SinkStep
from topology.topology import Topology
from transactions.partition_transactions import PartitionTransactions, TransactionPolicy


def policy_of(topology: Topology, policy: TransactionPolicy) -> TransactionPolicy:
    """`policy`, but no more is planned at once than a batch takes: it is committed as a whole."""
    rows = min(step.policy.batch_rows for step in _sinks(topology))
    return replace(policy, plan_records=min(policy.plan_records, rows))


def gates_of(topology: Topology, policy: TransactionPolicy) -> MakeGate:
    """What makes a partition's line, by `policy`.

    Where a source has a rate, no more is put into a transaction than may be emitted while a
    batch fills: else its commit would wait for the last of it.
    """
    seconds = min(step.policy.batch_seconds for step in _sinks(topology))

    def make(partition: Partition, resumed: Resumed, room: Callable[[], int]) -> Gate:
        rate = topology.source_of(partition.topic).records_per_second
        records = policy.records if rate is None else max(1, int(rate * seconds))
        cut = replace(policy, records=min(policy.records, records))
        return PartitionTransactions(partition, resumed, cut, room)

    return make


def _sinks(topology: Topology) -> list[SinkStep]:
    return [step for step in topology.steps() if isinstance(step, SinkStep)]
