"""A line beside a plain model of a partition, its node, and two sinks, with crashes."""

from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from partition.interfaces import StoredOffset
from partition.records import Chunk, Partition, Position, Range, Resumed, Transactions
from tests.support import transactions as lined
from transactions.transaction import Phase, TransactionPolicy, resumed

ORDERS = Partition("orders", 3)
SINKS = ("lake", "archive")


class LineAndModel(RuleBasedStateMachine):
    """The log, the node and the sinks outlive a crash; the line and what is in memory do not."""

    @initialize(
        kind=st.sampled_from(["transactional", "opaque"]),
        max_active=st.integers(1, 3),
        records=st.integers(1, 9),
        plan_records=st.integers(1, 6),
        window=st.integers(3, 20),
    )
    def begin(self, kind, max_active, records, plan_records, window):
        self.policy = TransactionPolicy(kind, max_active, records, plan_records, 0.5)
        self.max_pending = window
        self.now = 0.0
        self.log = []  # every offset
        self.log_end = 40
        self.sinks = {sink: {} for sink in SINKS}  # of each: txid: offsets
        self.node = StoredOffset(Position(40), "a", epoch=1)
        self.attempts = {}  # the last of each txid in which anything was emitted
        self.live(Resumed(self.node.position, Transactions(kind)))

    def live(self, resumes):
        self.line = lined.resume(ORDERS, resumes, self.policy)
        self.standing = None
        self.position = resumes.position.offset
        self.fetched_to = self.position
        self.waiting, self.under_way, self.processed, self.uncommitted = [], set(), set(), set()
        self.taken, self.asked, self.letters, self.lettered = [], None, [], set()
        self.emitted_in = {}  # offset: txid
        self.spent = dict(self.attempts)

    @property
    def room(self):
        return self.max_pending - len(self.uncommitted)

    @property
    def filled(self):
        return 0 if self.line.filling is None else self.line.filling.count

    @property
    def planned(self):
        """Those that wait in a transaction."""
        txids = self.line.transactions_of(np.array(self.waiting, np.int64))
        return int(np.count_nonzero(txids))

    @property
    def last_completed_offset(self):
        """The lowest that is fetched and not done."""
        pending = [*self.waiting, *self.under_way, *self.processed]
        return min(pending, default=self.fetched_to)

    def lengths(self, offsets):
        return np.array([offset % 7 for offset in offsets], np.int64)

    # The log

    @rule(gaps=st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=12))
    def write_and_fetch(self, gaps):
        for gap in gaps:
            self.log.append(self.log_end + gap - 1)
            self.log_end += gap
        self.fetch(len(gaps))

    @property
    def unread(self):
        return [offset for offset in self.log if offset >= self.fetched_to]

    @precondition(lambda self: self.unread)
    @rule(count=st.integers(1, 12))
    def fetch(self, count):
        offsets = self.unread[:count]
        self.waiting += offsets
        self.fetched_to = offsets[-1] + 1
        epochs = ((offsets[0], 4),)
        chunk = Chunk(ORDERS, np.array(offsets, np.int64), [], epochs)
        self.line.on_fetched(chunk, self.lengths(offsets))

    @precondition(lambda self: not self.unread)
    @rule(gap=st.integers(0, 3))
    def read_to_the_end(self, gap):
        self.log_end += gap
        self.fetched_to = self.log_end
        self.line.on_log_end(self.log_end)

    # Plans

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.2]))
    def plan(self, seconds):
        self.now += seconds
        before = self.filled
        self.line.plan(self.now - seconds / 2, self.room)  # it learns since when some wait
        self.line.plan(self.now, self.room)
        assert self.filled >= before
        if self.filled > before == 0:
            assert self.now - seconds / 2 <= self.line.filling.since <= self.now

    @precondition(lambda self: self.line.filling)
    @rule()
    def close(self):
        self.line.close()
        assert self.line.filling is None

    @property
    def has_to_store(self):
        return self.standing != self.line.to_store()

    @property
    def may_ask(self):
        moved = self.last_completed_offset > self.node.position.offset
        return self.asked is None and (self.has_to_store or moved)

    @precondition(lambda self: self.may_ask)
    @rule(meanwhile=st.sampled_from(["nothing", "more is planned", "the reply is awaited"]))
    def ask_to_store(self, meanwhile):
        transactions = self.line.to_store()
        begins_at = transactions.first
        offset = (
            self.last_completed_offset
            if begins_at is None
            else min(self.last_completed_offset, begins_at)
        )
        transactions.checked(offset)
        assert offset >= self.node.position.offset
        self.asked = (offset, transactions)
        if meanwhile == "more is planned":
            self.write_and_fetch([1])
            self.plan(1.2)
        if meanwhile != "the reply is awaited":
            self.store()

    @precondition(lambda self: self.asked is not None)
    @rule()
    def store(self):
        offset, transactions = self.asked
        self.land()
        self.asked = None
        lined.store(self.line, transactions)
        self.standing = transactions
        self.uncommitted = {each for each in self.uncommitted if each >= offset}

    def land(self):
        offset, transactions = self.asked
        position = Position(offset)
        self.node = replace(self.node, position=position, transactions=transactions)

    # Records

    @property
    def emittable(self):
        end = min(self.line.open_to, self.line.ends_at)
        return [offset for offset in self.waiting if offset < end]

    @precondition(lambda self: self.emittable)
    @rule(limit=st.integers(1, 9))
    def emit(self, limit):
        given = self.emittable[:limit]
        txids = set(self.line.transactions_of(np.array(given)).tolist())
        assert len(txids) == 1
        [txid] = txids
        standing = {each.txid: each for each in self.node.transactions.open}
        covers = standing[txid].range
        assert covers.first <= given[0]
        assert given[-1] < covers.end
        attempt = self.line.transaction_of(txid).attempt
        assert standing[txid].attempt == attempt
        assert self.spent.get(txid, 0) < attempt
        self.attempts[txid] = attempt
        self.waiting = self.waiting[len(given) :]
        self.under_way.update(given)
        self.uncommitted.update(given)
        self.emitted_in.update(dict.fromkeys(given, txid))
        self.line.on_emitted(len(given))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), some=st.booleans())
    def process(self, data, some):
        those = sorted(self.under_way)
        if some:
            those = data.draw(st.lists(st.sampled_from(those), unique=True))
        self.under_way.difference_update(those)
        self.processed.update(those)
        lined.process(self.line, *those)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def reject(self, data):
        covers = data.draw(st.sampled_from(self.taken)).range
        inside = [o for o in sorted(self.processed) if covers.first <= o < covers.end]
        if found := sorted(set(inside) - set(self.letters)):
            offset = data.draw(st.sampled_from(found))
            assert self.line.awaits(offset) == (offset not in self.lettered)
            if offset not in self.lettered:
                self.lettered.add(offset)
                self.letters.append(offset)

    @precondition(lambda self: self.letters)
    @rule()
    def letter_is_durable(self):
        lined.process(self.line, self.letters.pop(0))

    # Commits

    @precondition(lambda self: self.processed)
    @rule()
    def take(self):
        found = self.line.ready()
        if found is None:
            return
        self.line.grouped_to = found.txid
        of_it = [o for o in self.log if found.range.first <= o < found.range.end]
        assert found.range.count == len(of_it)
        assert self.processed.issuperset(of_it)
        assert {self.emitted_in[offset] for offset in of_it} == {found.txid}
        assert found is self.line.transaction_of(found.txid)
        standing = {each.txid: each.range for each in self.node.transactions.open}
        assert standing[found.txid] == found.range
        assert found.txid == self.line.committed + 1 + len(self.taken)
        self.taken.append(found)

    @precondition(lambda self: self.taken)
    @rule(sink=st.sampled_from(SINKS))
    def commit(self, sink):
        has = self.sinks[sink]
        for found in self.taken:
            of_it = [o for o in self.log if found.range.first <= o < found.range.end]
            if found.txid <= self.line.skips.get(sink, 0):
                assert has[found.txid] == of_it
            elif found.txid not in has:
                if found.phase is not Phase.COMMITTING:
                    if not self.line.is_ready(found.txid):
                        return
                    self.line.take(found.txid)
                assert found.txid == len(has) + 1
                has[found.txid] = of_it
                return

    @property
    def is_done(self):
        return self.taken and all(self.taken[0].txid in has for has in self.sinks.values())

    @precondition(lambda self: self.is_done)
    @rule()
    def done(self):
        covers = self.line.done(self.taken.pop(0).txid)
        assert not any(covers.first <= offset < covers.end for offset in self.waiting)
        self.processed = {offset for offset in self.processed if offset >= covers.end}

    # Crashes

    def unseal(self):
        """As if the other engine had planned what no sink has, and had not read it."""
        known = self.node.transactions
        if known is None:
            return
        most = max(len(has) for has in self.sinks.values())
        opened = tuple(
            each
            if each.txid <= most
            else replace(each, range=Range(each.range.first, each.range.end))
            for each in known.open
        )
        self.node = replace(self.node, transactions=replace(known, open=opened))

    @rule(landed=st.booleans(), again=st.booleans(), unsealed=st.booleans())
    def crash(self, landed, again, unsealed=False):
        if self.asked is not None and landed:
            self.land()
        if unsealed:
            self.unseal()
        self.node = replace(self.node, epoch=self.node.epoch + 1)
        committed = {sink: len(has) for sink, has in self.sinks.items()}
        if self.node.transactions is None:
            assert set(committed.values()) == {0}
        self.live(resumed(ORDERS, self.node, committed, self.policy.kind))
        assert self.line.to_store().first in {None, self.position}
        if again:  # as soon as it has stored what it begins with
            self.ask_to_store("nothing")
            self.crash(landed=True, again=False)

    @invariant()
    def what_is_planned_is_in_order(self):
        line = self.line
        assert line.replay_error(log_moved=False) is None
        assert line.open_to >= self.position
        wanted = line.to_store()
        if wanted.open:
            wanted.checked(wanted.first)
        assert wanted.committed == line.committed
        assert len(wanted.open) <= self.policy.max_active
        counts = [each.range.count or 0 for each in wanted.open]
        assert max(counts, default=0) <= self.policy.records
        assert len(self.uncommitted) + self.planned <= self.max_pending
        assert not line.is_full(self.room) or self.filled > 0
        is_planned = bool(wanted.open and wanted.open[-1].range.end > line.open_to)
        sealed = {each.txid for each in wanted.open if each.range.is_sealed}
        standing = [] if self.node.transactions is None else self.node.transactions.open
        assert line.is_due or not is_planned
        if line.is_due and not is_planned:  # a seal alone
            assert any(not each.range.is_sealed and each.txid in sealed for each in standing)

    def teardown(self):
        self.finish()
        for has in self.sinks.values():
            assert list(has) == list(range(1, len(has) + 1))
            assert [offset for offsets in has.values() for offset in offsets] == self.log
        assert not self.line.to_store().open
        assert self.last_completed_offset == self.node.position.offset

    def finish(self):
        """Let everything come to its end, which it must."""
        for _turn in range(12 + 6 * len(self.log)):
            if self.unread:
                self.fetch(5)
            else:
                self.read_to_the_end(0)
            self.plan(1.2)
            self.line.close()
            if self.may_ask:
                self.ask_to_store("the reply is awaited")
            if self.asked is not None:
                self.store()
            if self.emittable:
                self.emit(9)
            those = sorted(self.under_way)
            self.under_way.clear()
            self.processed.update(those)
            lined.process(self.line, *those)
            while self.letters:
                self.letter_is_durable()
            self.take()
            for sink in SINKS:
                self.commit(sink)
            if self.is_done:
                self.done()
            is_stored = self.node.position.offset == self.fetched_to == self.log_end
            if is_stored and not self.line.to_store().open and not self.has_to_store:
                return
        raise AssertionError("it does not come to its end")


def test_every_record_is_committed_once_in_order_whatever_happens():
    """Promise 14: txids are contiguous and committed in order, and no attempt is used twice.

    A record is emitted only inside a range that stands in the node.
    """
    examples = 2 * settings.default.max_examples
    run_state_machine_as_test(
        LineAndModel, settings=settings(max_examples=examples, stateful_step_count=50)
    )
