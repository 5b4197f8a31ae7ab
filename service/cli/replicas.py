"""Where a pipeline's replicas and its partitions stand now, as far as it can be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from partition.errors import KafkaError, StoreError, StoreUnavailable
from partition.interfaces import Catalogue, Log, OffsetStore, StoredOffset
from partition.records import Partition
from partition.replicas.plan import Control, Member, Plan, leader_of
from service.cli.changes import Change
from service.cli.control import facts_of
from service.cli.lines import describe
from service.cli.replica_nodes import ReplicaNodes
from service.cli.topics import answer, partitions_of
from topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Rooms:
    """What is asked; all of it open."""

    topology: Topology
    nodes: ReplicaNodes
    catalogue: Catalogue
    store: OffsetStore


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition: who has it, what is stored of it, and where its log is."""

    partition: Partition
    owner: str | None  # by the plan, or who holds it though no plan says so
    state: str  # "held", "opening", "leaving", "gone" (its owner is), or "free"
    stored: StoredOffset | None  # None: nothing is, or it cannot be read
    log: Log | None  # None: not known
    note: str = ""

    @property
    def lag(self) -> int | None:
        """Offsets from what is committed, or else the log's start, to the log's end."""
        if self.log is None:
            return None
        return self.log.end - (self.log.start if self.stored is None else self.stored.offset)

    @property
    def open_txids(self) -> list[int]:
        """Transactions that are recorded, and not known to be in every sink."""
        stored = self.stored
        opened = stored.transactions.open if stored and stored.transactions else ()
        return [each.txid for each in opened]

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        return {
            "owner": self.owner,
            "state": self.state,
            "epoch": self.stored.epoch if self.stored else None,
            "committed": self.stored.offset if self.stored else None,
            "log_start": self.log.start if self.log else None,
            "log_end": self.log.end if self.log else None,
            "lag": self.lag,
            "open_txids": self.open_txids,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """A pipeline at about one moment."""

    pipeline: str
    place: str  # its nodes' path
    members: Sequence[Member]  # by name
    plan: Plan | None
    control: Control
    changes: Sequence[Change]  # offsets moved by operators, the oldest first
    partitions: Sequence[PartitionRow]
    trouble: KafkaError | None = None  # why logs are not known

    @property
    def leader(self) -> str | None:
        """The replica that writes the plans."""
        leader = leader_of(self.members)
        return None if leader is None else leader.name

    @property
    def lag(self) -> int | None:
        """Of all partitions; None if one's is not known."""
        return total_lag(self.partitions)

    def lag_of(self, member: Member) -> int | None:
        """Of the partitions that a replica holds; None if one's is not known."""
        return total_lag([each for each in self.partitions if each.partition in member.holds])

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON takes it."""
        plan = self.plan
        return {
            "pipeline": self.pipeline,
            "place": self.place,
            "leader": self.leader,
            "plan": {"number": plan.number, "leader": plan.leader} if plan else None,
            **facts_of(self.control),
            "replicas": {each.name: self._facts(each) for each in self.members},
            "lag": self.lag,
            "partitions": {str(each.partition): each.as_json() for each in self.partitions},
            "changes": msgspec.to_builtins(self.changes),
            "trouble": describe(self.trouble) if self.trouble else None,
        }

    def _facts(self, member: Member) -> dict[str, Any]:
        return {
            "leads": member.name == self.leader,
            "host": member.host,
            "since_ms": member.since_ms,
            "headrace": member.headrace,
            "process": member.process,
            "holds": len(member.holds),
            "lag": self.lag_of(member),
            "seen": member.seen,
            "drained": member.name in self.control.drained,
        }


def read_status(rooms: Rooms) -> Status:
    """Read all of it. Raises StoreUnavailable, StoreCorrupt of the replicas' nodes, StoreError.

    What Kafka does not say is left out, and told as `trouble`; so is an offset that cannot be
    read, in its partition's note.
    """
    nodes = rooms.nodes
    members, plan, control = nodes.members(), nodes.plan(), nodes.control()
    known = {each for member in members for each in member.holds}
    if plan is not None:
        known |= {*plan.owners, *plan.leaving}
    logs, trouble = _logs(rooms)
    rows = []
    for partition in sorted(known | set(logs)):
        owner, state = whose(partition, plan, members)
        stored, note = _stored(rooms.store, partition)
        rows.append(PartitionRow(partition, owner, state, stored, logs.get(partition), note))
    return Status(
        nodes.pipeline, nodes.place, members, plan, control, nodes.changes(), rows, trouble
    )


def whose(
    partition: Partition, plan: Plan | None, members: Sequence[Member]
) -> tuple[str | None, str]:
    """Say whose a partition is, and which `PartitionRow.state` it is in."""
    holders = [each.name for each in members if partition in each.holds]
    owner = None if plan is None else plan.owners.get(partition)
    leaving = None if plan is None else plan.leaving.get(partition)
    if owner in holders:
        return owner, "held"
    names = {each.name for each in members}
    if leaving is not None and leaving.name in names:
        return leaving.name, "leaving"
    if holders:  # by no plan that is left
        return holders[0], "held"
    if owner is None:
        return None, "free"
    return owner, "opening" if owner in names else "gone"


def total_lag(rows: Sequence[PartitionRow]) -> int | None:
    """The sum of lags; None if one is not known."""
    total = 0
    for row in rows:
        if row.lag is None:
            return None
        total += row.lag
    return total


def _logs(rooms: Rooms) -> tuple[Mapping[Partition, Log | None], KafkaError | None]:
    """The logs of all partitions that the topology reads, and why some are not known."""
    try:
        partitions = partitions_of(rooms.topology, rooms.catalogue)
    except KafkaError as error:
        return {}, error
    logs: dict[Partition, Log | None] = {}
    trouble = None
    # All at once: the catalogue asks for them together.
    asked = [(partition, rooms.catalogue.log(partition)) for partition in partitions]
    for partition, log in asked:
        try:
            logs[partition] = answer(log)
        except KafkaError as error:
            logs[partition] = None
            trouble = trouble or error
    return logs, trouble


def _stored(store: OffsetStore, partition: Partition) -> tuple[StoredOffset | None, str]:
    """What is stored, or why it cannot be read. Raises StoreUnavailable."""
    try:
        return store.load(partition), ""
    except StoreUnavailable:
        raise
    except StoreError as error:
        return None, describe(error)
