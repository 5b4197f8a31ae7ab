"""The oracle's part for worlds that run exactly once: what is stored of transactions, and landed.

T1 no record is committed twice in a table. T2 a record is emitted only inside a range that
stood in the node, under an attempt that is one life's alone. T3 the txids of a line are 1, 2,
3, … in each table. T4 under a txid come its stored range's records, with the rows of one try of
each. T5 nothing of a lower epoch lands after a fence. T6 a range that was taken over stays as it
is, and so does one that a table has. T7 two tables never differ in a txid's records.
"""

import hashlib
import struct

from partition.errors import KindChanged, ReplayDiffers, SinkAhead, SinkStateLost
from partition.records import Partition
from tests.simulation.errors import Violation
from tests.simulation.stored import NOTHING


class TransactionOracle:
    """Every check of transactions. Raises Violation."""

    def __init__(self, world):
        self._world = world
        self._epochs = {}  # of fences, by table and line
        self._last = {}  # txids that landed, by table and line
        self._before = NOTHING  # in the node that is being written
        self._written = {}  # by whom, by txid
        self._users = {}  # who emitted under an attempt
        self._record_ids = {}  # whose write the node holds
        self._replayed = set()
        self._contents = {}
        self._digests = {}
        self._in = {}

    # What is stored

    def written(self, sender, partition, old, new, *, offset):
        if new is None:
            raise Violation(14, f"{sender.name} wrote no transactions into {partition}")
        self._before = old = old or NOTHING
        self._follows(partition, new, offset)
        if new.committed < old.committed:
            raise Violation(14, f"{partition}: txid {old.committed} went to {new.committed}")
        key = (sender.name, partition)
        before = self._record_ids.get(partition)
        self._record_ids[partition] = sender.name
        entries = {each.txid: each for each in new.open}
        for each in old.open:
            now = entries.get(each.txid)
            if now is None:
                self._removed(partition, each, old, new)
            elif now != each:
                self._changed(partition, each, now, own=before == sender.name)
        last = old.committed + len(old.open)
        if new.committed > last:
            raise Violation(14, f"{partition}: txid {new.committed} is done, begun was {last}")
        self._written[key] = entries

    def _follows(self, partition, new, offset):
        settings = self._world.settings
        if new.kind != settings.kind:
            raise Violation(14, f"{partition} is {new.kind} now")
        if len(new.open) > settings.max_active:
            raise Violation(14, f"{partition} has {len(new.open)} transactions open")
        txid, place = new.committed, offset
        for each in new.open:
            txid += 1
            if each.txid != txid or each.first != place or each.end <= each.first:
                raise Violation(14, f"{partition} at {offset} has a hole: {new}")
            place = each.end

    def _removed(self, partition, gone, old, new):
        tables = self._world.tables
        has = [table.name for table in tables if self.txid_of(table, partition) >= gone.txid]
        if gone.txid <= new.committed:
            if len(has) < len(tables):
                raise Violation(3, f"{partition}: txid {gone.txid} is done, but only in {has}")
        elif has:
            raise Violation(14, f"{partition}: txid {gone.txid} was dropped, but is in {has}")
        elif not self._may_be_dropped(old, new):
            raise Violation(14, f"{partition}: txid {gone.txid} was dropped")

    def _may_be_dropped(self, old, new):
        return self._world.settings.kind == "opaque"

    def _changed(self, partition, was, now, *, own):
        if now.attempt < was.attempt:
            raise Violation(14, f"{partition}: {was} went back to {now}")
        same_range = was[2:] == now[2:]
        has = any(self.txid_of(table, partition) >= was.txid for table in self._world.tables)
        if not same_range and has:
            raise Violation(14, f"{partition}: {was} became {now}, and a table has it")
        if now.attempt > was.attempt:
            self._tried_again(partition, was, now, same_range=same_range)
            return
        if not own:
            raise Violation(14, f"{partition}: {was} of another process became {now}")
        if (partition, was.txid, was.attempt) in self._replayed:
            raise Violation(14, f"{partition}: {was} is replayed, and became {now}")
        grew = (now.records or 0) > (was.records or 0)
        if now.first != was.first or now.end <= was.end or not grew:
            raise Violation(14, f"{partition}: {was} became {now}")
        self._world.seen("transaction_grew")

    def _tried_again(self, partition, was, now, *, same_range):
        if self._world.settings.kind == "transactional":
            if not same_range:
                raise Violation(14, f"{partition}: {was} was replayed as {now}")
            self._replayed.add((partition, now.txid, now.attempt))
        elif not same_range:
            self._world.seen("replayed_with_another_range")

    # What is emitted

    def emitted(self, life, record):
        partition = record.partition
        written = self._written.get((life.name, partition), {})
        for each in written.values():
            if each.first <= record.offset < each.end:
                user = self._users.setdefault((partition, each.txid, each.attempt), life.name)
                if user != life.name:
                    raise Violation(14, f"{life.name} emitted of {each}, an attempt of {user}")
                return
        raise Violation(14, f"{record} was emitted, but not in a stored range: {written}")

    def emitted_again(self, life, record):
        """A record was retried; its transaction, and all after it, wait for it."""
        written = self._written.get((life.name, record.partition), {})
        txids = [each.txid for each in written.values() if each.first <= record.offset < each.end]
        if txids and txids[0] < max(written):
            self._world.seen("retry_holds_later_transactions")

    # What lands

    def txid_of(self, table, partition):
        return self._last.get((table.name, str(partition)), 0)

    def fenced(self, table, line, epoch):
        self._epochs[table.name, line] = max(epoch, self._epochs.get((table.name, line), 0))

    def said_done(self, table, sender, staged):
        for share in staged.shares:
            digest = self._digests.get((table.name, share.line, share.txid))
            if digest != share.digest:
                raise Violation(3, f"{table.name} has {share} of {sender.name} as {digest}")
        self._world.seen("commit_repeated")

    def has_some(self, table, sender, staged):
        """A table has only some of a group: who leaves out what it has would not ask for it."""
        shares = ", ".join(f"{share.line} txid {share.txid}" for share in staged.shares)
        raise Violation(14, f"{table.name} has only some of {shares} of {sender.name}")

    def landed(self, table, sender, staged):
        if not sender.alive:
            self._world.seen("commit_of_a_dead_process_landed")
        if len(staged.shares) > 1:
            self._world.seen("group_of_several_lines")
        for share, rows in zip(staged.shares, staged.parts, strict=True):
            self._share_landed(table, sender, share, rows)

    def _share_landed(self, table, sender, share, rows):
        where = (table.name, share.line)
        what = f"{share.line} txid {share.txid} of {sender.name} in {table.name}"
        if share.epoch < self._epochs.get(where, 0):
            raise Violation(9, f"{what} landed under epoch {share.epoch}: {self._epochs[where]}")
        if share.txid != self._last.get(where, 0) + 1:
            raise Violation(14, f"{what} landed after {self._last.get(where, 0)}")
        partition = _partition_of(share.line)
        stored = self._written.get((sender.name, partition), {}).get(share.txid)
        if stored is None or (stored.attempt, stored.first, stored.end, stored.digest) != (
            share.attempt, share.first, share.end, share.digest,
        ):  # fmt: skip
            raise Violation(14, f"{what} is {share}, stored was {stored}")
        now = self._world.oracle.stored.now.get(partition)
        if now is not None and now.epoch > share.epoch:
            self._world.seen("commit_landed_between_claim_and_fence")
        records = self._records_of(what, table, sender, partition, stored, rows)
        twice = records & self._in.setdefault(table.name, set())
        if twice:
            raise Violation(14, f"{what} has {min(map(str, twice))}, which landed before")
        self._in[table.name] |= records
        self._last[where] = share.txid
        self._digests[table.name, share.line, share.txid] = share.digest
        flight = self._world.oracle.flight_at(sender, partition)
        self._all_tables(what, table, share, records, flight)

    def _records_of(self, what, table, sender, partition, stored, rows):
        """The records of a share that landed, which are those that were stored."""
        flight = self._world.oracle.flight_at(sender, partition)
        tries = [flight.tries[n] for n in range(stored.first, stored.end) if n in flight.tries]
        self._are_the_stored(what, stored, [each.record for each in tries])
        self._are_their_rows(what, table, tries, rows)
        return frozenset(each.record for each in tries)

    def _are_the_stored(self, what, stored, records):
        if (len(records), _digest_of(records)) != (stored.records, stored.digest):
            offsets = [each.offset for each in records]
            raise Violation(14, f"{what} has {offsets}, stored was {stored}")

    def _are_their_rows(self, what, table, tries, rows):
        """Each record's rows are those of its last try, each once; and its letters are durable."""
        found = list(rows)
        for each in tries:
            if not each.complete:
                raise Violation(3, f"{what} landed with {each.record} under way")
            for row in each.rows:
                if row.table != table.name:
                    continue
                if not row.fits:
                    if each.letter is None or not each.letter.complete:
                        raise Violation(13, f"{what} landed before a letter of {each.record}")
                elif row not in found:
                    raise Violation(3, f"{what} lacks a row of {each.record}")
                else:
                    found.remove(row)
        if found:
            attempt = found[0].attempt
            raise Violation(14, f"{what} has a row of try {attempt.number} of {attempt.record}")

    def _all_tables(self, what, table, share, records, flight):
        contents = self._contents.setdefault((share.line, share.txid), {})
        for other, theirs in contents.items():
            if theirs != records:
                raise Violation(14, f"{what} has other records than {other}")
        contents[table.name] = records
        if len(contents) < len(self._world.tables):
            return
        del self._contents[share.line, share.txid]
        for record in records:
            record.done = True
            flight.unresolved.pop(record.offset, None)
        self._world.seen("transaction_committed")

    # What cannot go on

    def halted(self, life):
        """The partitions whose open transactions cannot be replayed: then the log is another."""
        found = set()
        for held in life.reader.assignment:
            if isinstance(held.error, SinkAhead | SinkStateLost | KindChanged):
                raise Violation(14, f"{life.name}: {held.error}")
            if isinstance(held.error, ReplayDiffers):
                found.add(held.partition)
                if held.partition not in self._world.unreplayable:
                    self._world.seen("replay_differs")
                    self._differs(held.partition, held.error)
        return found

    def _differs(self, partition, halted):
        now = self._world.oracle.stored.now.get(partition)
        log = self._world.cluster.log(partition)
        if now is None or now.transactions is None or log is None or log.topic_id != now.topic_id:
            return
        for each in now.transactions.open:
            records = log.branch(None, each.first, each.end)
            there = [record for record in records if not record.gone]
            same = _digest_of(there) == each.digest and log.start <= each.first
            # A marker of a later leader looks the same as a log that was cut off there.
            if not same or log.cut or log.epoch or any(record.rotten for record in there):
                return
        if now.transactions.open:
            raise Violation(12, f"{partition} halted, but its log has all of it: {halted}")

    def kept(self, life):
        """No rows are kept of what is done (10)."""
        leftover = None if life.transacting is None else life.transacting.leftover()
        if leftover is not None:
            raise Violation(10, f"{life.name}: {leftover}")

    # The operator

    def given_up(self, partition, txid):
        """An operator has a line go on behind a txid. Give what only some tables have."""
        found = set()
        for key in [key for key in self._contents if key[0] == str(partition)]:
            for records in self._contents.pop(key).values():
                found |= records
        for table in self._world.tables:
            self._last[table.name, str(partition)] = txid
        self._users = {key: user for key, user in self._users.items() if key[0] != partition}
        self._replayed = {key for key in self._replayed if key[0] != partition}
        return found


def _digest_of(records):
    pairs = [struct.pack("<qq", record.offset, len(record)) for record in records]
    return hashlib.blake2b(b"".join(pairs), digest_size=16).hexdigest()


def _partition_of(line):
    topic, _, number = line.rstrip("]").partition("[")
    return Partition(topic, int(number))
