"""Dead letters on their way: none is forgotten, and each is told of once."""

import random

import numpy as np
import pytest
from structlog.testing import capture_logs

from headrace import Record, Reject, Topology, bolt
from headrace.sinks import DiscardSink
from partition.consumer import Consumer, ConsumerPolicy
from partition.memory.ports import (
    MemoryCatalogue,
    MemoryFetcher,
)
from partition.records import Partition, Position
from partition.recovery import Loss, Ways
from service.pipeline.build import PipelinePolicy, Ports, build_pipeline
from service.pipeline.dead_letter_sender import RESEND_SECONDS, DeadLetterSender
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from tests.support.messages import message
from topology.sink import DeadLetter, DeadLetterSink, Delivered

PLACE = Partition("t", 0)


class Broker(DeadLetterSink):
    """A dead-letter topic whose broker answers as the test says."""

    name = "t.dead"

    def __init__(self):
        self.sent = []
        self.answers = []

    def open(self, context):
        pass

    def flush(self, timeout_seconds):
        pass

    def close(self):
        pass

    def send(self, letter, token):
        self.sent.append((token, letter))

    def answer(self, token, error=None):
        self.answers.append(Delivered(token, error))

    def poll(self):
        answers, self.answers = self.answers, []
        return answers

    @property
    def pending(self):
        return len(self.sent)

    @property
    def tokens(self):
        return [token for token, _ in self.sent]


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def sender(broker):
    return DeadLetterSender(broker)


def send(sender, offset=0, tree=7, edge=9):
    record = Record(b"x", message(PLACE, offset, b"x"))
    sender.send(DeadLetter(record, "bad", 1, "Reject", "parse", 0), tree, edge, 0)


def durable(sender, now=0.0):
    trees, edges = sender.poll(now)
    assert (trees.dtype, edges.dtype) == (np.int64, np.uint64)
    return list(zip(trees.tolist(), edges.tolist(), strict=True))


def test_dead_letter_is_pending_until_the_broker_has_it(sender, broker):
    for tree in (1, 2, 3):
        send(sender, tree, tree, 2**64 - tree)
    assert durable(sender) == []
    first, second, third = broker.tokens
    broker.answer(third)
    broker.answer(first)
    broker.answer(second, "too slow")
    assert durable(sender) == [(3, 2**64 - 3), (1, 2**64 - 1)]
    assert (sender.pending, sender.trees().tolist(), sender.refused) == (1, [2], 1)
    broker.answer(second)
    assert durable(sender) == [(2, 2**64 - 2)]
    assert (sender.pending, durable(sender)) == (0, [])


def test_notice_is_durable_before_its_future_ends(sender, broker):
    """Promise 3; Storm 1: no silent jump."""
    loss = Loss(PLACE, "expired", Position(4), Position(10), 6, "and the log holds 10 to 20")
    future = sender.send_notice(loss)
    ((token, notice),) = broker.sent
    assert (notice.first_offset, notice.resume_offset, notice.lost) == (4, 10, 6)
    assert (notice.topic, notice.partition, notice.reason) == (*PLACE, "expired")
    broker.answer(token, "refused")
    assert (durable(sender), sender.trees().tolist(), future.done()) == ([], [], False)
    durable(sender, RESEND_SECONDS)
    broker.answer(token)
    assert durable(sender, 9.0) == []
    assert future.done()


def test_waiting_time_starts_at_the_last_delivery(sender, broker):
    durable(sender, 10.0)
    assert sender.waiting_seconds(12.0) == 0
    send(sender, 0)
    send(sender, 1)
    durable(sender, 20.0)
    assert sender.waiting_seconds(24.0) == 4
    first, second = broker.tokens
    broker.answer(first, error="no leader")
    durable(sender, 30.0)
    assert sender.waiting_seconds(30.0) == 10, "a rejection is no delivery"
    broker.answer(second)
    assert len(durable(sender, 31.0)) == 1
    assert sender.waiting_seconds(33.0) == 2, "the other still waits"
    broker.answer(first)
    durable(sender, 40.0)
    assert sender.waiting_seconds(50.0) == 0


def test_rejected_dead_letter_is_sent_again_after_a_pause(sender, broker):
    send(sender)
    (token,) = broker.tokens
    now = 100.0
    for attempts in range(1, 20):
        broker.answer(token, "not enough replicas")
        assert durable(sender, now) == durable(sender, now + RESEND_SECONDS * 0.9) == []
        assert len(broker.sent) == attempts
        now += RESEND_SECONDS
        assert durable(sender, now) == []
        assert len(broker.sent) == attempts + 1
        assert (sender.pending, sender.refused) == (1, attempts)
    broker.answer(token)
    assert durable(sender, now) == [(7, 9)]
    assert broker.sent[0][1] == broker.sent[-1][1]


def test_rejected_dead_letter_is_logged_at_doubling_counts(sender, broker):
    send(sender, 41)
    send(sender, 42)
    first, second = broker.tokens
    with capture_logs() as logged:
        for now in range(9):
            broker.answer(first, "too large")
            sender.poll(float(now))
        broker.answer(second, "too large")
        sender.poll(9.0)
    said = [(each["offset"], each["refusals"]) for each in logged]
    assert said == [(41, 1), (41, 2), (41, 4), (41, 8), (42, 1)]
    assert {(each["topic"], each["partition"], each["size"]) for each in logged} == {("t", 0, 1)}


@bolt
def parse(record: Record) -> int:
    if record.value == b"bad":
        raise Reject("bad")
    return 1


def test_rejected_dead_letter_blocks_the_commit(broker):
    """Promises 1 and 3: committed stays below a record until its letter is durable."""
    now = 0.0
    log, nodes = FaultyLog({"t": 1}), FaultyNodes()
    for value in (b"1", b"bad", b"3"):
        log.append(PLACE, value)
    topology = Topology("t")
    topology.source("t").then(parse).into(DiscardSink())
    topology.dead_letters.into(broker)

    def make_reader(notify, _fences):
        return Consumer(
            MemoryFetcher(log),
            Ways(FaultyStore(nodes), MemoryCatalogue(log), notify),
            ["t"],
            ConsumerPolicy(),
            random.Random(1),
        )

    ports = Ports(make_reader, broker, np.random.default_rng(1), lambda: now)
    pipeline = build_pipeline(topology, ports, PipelinePolicy())
    reader = pipeline.consumer
    reader.open()
    pipeline.open()
    committed = []

    def settle() -> None:
        for _ in range(20):
            pipeline.step(flush=True)
        reader.commit(now, force=True)
        committed.append(_stored(nodes))

    try:
        settle()
        (token,) = broker.tokens
        for _ in range(5):
            broker.answer(token, "refused")
            settle()
            now += 2 * RESEND_SECONDS
            settle()
        assert len(broker.sent) == 6
        assert committed == [1] * 11
        broker.answer(token)
        settle()
        assert committed[-1] == 3
        assert pipeline.is_idle
        assert pipeline.counters.dead_lettered == 1
    finally:
        pipeline.close(5)
        reader.close()


def _stored(nodes: FaultyNodes) -> int:
    store = FaultyStore(nodes)
    store.open()
    stored = store.load(PLACE)
    assert stored is not None
    return stored.offset
