"""The oracle's part that watches every write of an offset node: promises 2, 3, 7, 8, 9, 12."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from partition.records import Partition
from tests.simulation.errors import Violation


class Open(NamedTuple):
    """An open transaction, as it stands in a node."""

    txid: int
    attempt: int
    first: int
    end: int
    records: int | None  # None: it is only planned
    digest: str | None


class Recorded(NamedTuple):
    """A node's transactions, read by no code of the product."""

    kind: str
    committed: int
    open: tuple[Open, ...]


NOTHING = Recorded("", 0, ())


def look_at(found):
    """What a node's JSON says of transactions. Raises KeyError and TypeError."""
    if found is None:
        return None
    entries = [
        Open(
            each["txid"], each["attempt"], each["first"], each["end"],
            each.get("count"), each.get("digest"),
        )
        for each in found["open"]
    ]  # fmt: skip
    return Recorded(found["kind"], found["committed"], tuple(entries))


@dataclass(frozen=True, slots=True)
class Seen:
    """An offset node, read by no code of the product."""

    offset: int
    epoch: int
    process: str
    leader_epoch: int | None
    topic_id: str | None
    transactions: Recorded | None = None


def partition_of(path):
    parts = path.split("/")
    if len(parts) < 2 or not parts[-1].startswith("partition_"):
        return None
    return Partition(parts[-2], int(parts[-1].removeprefix("partition_")))


def look(data):
    """What a node holds, or None where there is none or nobody can read it."""
    try:
        node = msgspec.json.decode(data or b"")
        ours = node["headrace"]
        recorded = look_at(ours.get("transactions"))
        return Seen(
            node["offset"], ours["epoch"], ours["writer"], ours["leader_epoch"], ours["topic_id"],
            recorded,
        )  # fmt: skip
    except (msgspec.DecodeError, KeyError, TypeError):
        return None


class StoredOffsets:
    """What is stored, and whether it may be."""

    def __init__(self, world):
        self._world = world
        self.begun = set()
        self.now = {}
        self.by_hand = set()  # last written by an operator

    def written(self, sender, path, before, after):
        partition = partition_of(path)
        if partition is None:
            return
        new, old = look(after), look(before)
        if sender is None:
            self.by_hand.add(partition)
        else:
            self.by_hand.discard(partition)
            self._check(sender, partition, old, new, existed=before is not None)
        if new is None:
            self.now.pop(partition, None)
        else:
            self.now[partition] = new

    def _check(self, sender, partition, old, new, *, existed):
        if existed and sender.store.claimed.get(partition) != sender.store.session:
            raise Violation(9, f"{sender.name} wrote to {partition} without a claim in its session")
        if new is None:
            raise Violation(8, f"{sender.name} wrote no offset into {partition}")
        if not existed:
            self._look_at_transactions(sender, partition, None, new)
            self._begin(partition, new)
            return
        if old is None:
            raise Violation(8, f"{sender.name} wrote over what it could not read of {partition}")
        if new.epoch < old.epoch:
            raise Violation(9, f"the epoch of {partition} went from {old.epoch} to {new.epoch}")
        if new.process != old.process:
            self._claimed(sender, partition, old, new)
        if sender.name != self._name(new.process):
            raise Violation(9, f"{sender.name} wrote as {self._name(new.process)}")
        moved = self._is_move(sender, partition, new)
        if new.offset < old.offset and not moved:
            raise Violation(2, f"{partition} went from {old.offset} back to {new.offset}")
        self._look_at_transactions(sender, partition, old, new)
        self._passed(sender, partition, old, new, moved=moved)
        self._tell(sender, partition, old, new, moved=moved)

    def _look_at_transactions(self, sender, partition, old, new):
        if self._world.settings.exactly_once:
            self._world.transactions.written(
                sender, partition, None if old is None else old.transactions, new.transactions,
                offset=new.offset,
            )  # fmt: skip

    def _tell(self, sender, partition, old, new, *, moved):
        if moved:
            self._world.oracle.unstored.moved(sender, partition)
        elif new.offset > old.offset:
            self._world.oracle.committed(sender, partition, new.offset)

    def _claimed(self, sender, partition, old, new):
        """Another process writes than before: only a claim may do that (9)."""
        if new.epoch <= old.epoch:
            raise Violation(9, f"{sender.name} wrote to {partition}, which was not its own")
        if new.offset != old.offset:
            raise Violation(9, f"{sender.name}'s claim changed the offset of {partition}")
        self._taken_over(old)

    def _begin(self, partition, new):
        if partition in self.begun:
            raise Violation(8, f"{partition} was begun again at {new.offset}")
        log = self._log(partition, new.topic_id)
        if log is None:
            raise Violation(12, f"{partition} was begun in a topic that never was")
        latest = self._world.settings.start_from == "latest" and not log.added_late
        if not latest and any(not record.settled for record in log.read(0, 1)):
            first = log.records[0].offset
            if first < new.offset:
                raise Violation(7, f"{partition} was begun at {new.offset}, not at {first}")
        for record in log.history.values():
            if record.offset < new.offset:
                record.lost = True  # left out by the start policy
        self.begun.add(partition)

    def _passed(self, sender, partition, old, new, *, moved):
        """Every record that the offset passes must have come to its end (promise 3)."""
        low, log = old.offset, self._log(partition, old.topic_id or new.topic_id)
        high = new.offset
        if old.topic_id is not None and new.topic_id != old.topic_id:
            if not moved:
                raise Violation(12, f"{partition} passed into another incarnation by a commit")
            if log is not None:
                self._settled(partition, log, {old.leader_epoch}, low, log.end)
            low, log = 0, self._log(partition, new.topic_id)
        elif log is not None and old.leader_epoch is not None and not moved:
            table = log.branches.get(new.leader_epoch or 0, [])
            cut = next((first for epoch, first in table if epoch > old.leader_epoch), high)
            # It may have been cut off there, and written anew; as far as the leader can tell.
            low = min(low, max(cut, log.start))
        if log is not None:
            # The epoch is that of the last record; gaps after it were read under a later one.
            known = sender.fetcher.read_under.get((log.topic_id, partition), new.leader_epoch)
            epochs = {new.leader_epoch} if moved else {new.leader_epoch, known}
            self._settled(partition, log, epochs, low, high)

    def _settled(self, partition, log, epochs, low, high):
        """Looked at in the log as the writer knew it; and as it is now, if it was cut since."""
        branches = [log.branch(epoch, low, high) for epoch in epochs]
        seen = [{record.offset for record in branch if not record.settled} for branch in branches]
        passed = [record for record in branches[0] if record.offset in set.intersection(*seen)]
        if not passed:
            return
        now = {r.offset for r in log.branch(None, low, high) if not r.settled}
        for record in passed:
            if record.offset in now:
                raise Violation(3, f"{partition} was stored at {high}, past {record}")

    def _is_move(self, sender, partition, new):
        return any(
            position.offset == new.offset and reason
            for position, reason in sender.store.moves.get(partition, ())
        )

    def _taken_over(self, old):
        world = self._world
        before = world.processes.get(old.process)
        world.seen("takeover")
        if before is None or not before.alive:
            return
        world.seen("takeover_from_a_living_process")
        if before.store.operation == "commit":
            world.seen("takeover_inside_a_commit")
        if before.frozen:
            world.seen("takeover_from_a_paused_process")

    def _name(self, process):
        life = self._world.processes.get(process)
        return "nobody" if life is None else life.name

    def _log(self, partition, topic_id):
        if topic_id is None:
            return self._world.cluster.log(partition)
        return self._world.cluster.logs.get((topic_id, partition))


class _Count:
    """The first emissions of one life of one partition that are not stored."""

    def __init__(self):
        self.offsets = []
        self.was_full = False  # of records that were all resolved


class Unstored:
    """Knows only what the servers have carried out; the process itself may learn it later."""

    def __init__(self, world):
        self._world = world
        self._counts = {}

    def emitted(self, life, partition, offset):
        count = self._count(life, partition)
        count.offsets.append(offset)
        limit = self._world.settings.max_pending
        if len(count.offsets) > limit:
            found = f"{len(count.offsets)} records of {limit} are emitted and not stored"
            raise Violation(15, f"{life.name}, {partition}: {found}")
        if count.was_full:
            count.was_full = False
            self._world.seen("went_on_after_full_of_uncommitted")

    def resolved(self, life, partition):
        count = self._count(life, partition)
        if len(count.offsets) < self._world.settings.max_pending or count.was_full:
            return
        if self._world.zookeeper_is_away(life):
            count.was_full = True
            self._world.seen("full_of_uncommitted")

    def stored(self, life, partition, offset):
        offsets = self._count(life, partition).offsets
        del offsets[: bisect_left(offsets, offset)]

    def moved(self, life, partition):
        """A life's stored offset jumped; whatever it had emitted was resolved before."""
        self._count(life, partition).offsets.clear()

    def lost(self, life, partition):
        self._counts.pop((life.name, partition), None)

    def forget(self, life):
        for key in [key for key in self._counts if key[0] == life.name]:
            del self._counts[key]

    def _count(self, life, partition):
        return self._counts.setdefault((life.name, partition), _Count())
