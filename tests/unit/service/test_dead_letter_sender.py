"""Dead letters on their way: none is forgotten, and each is told of once."""

import random

import numpy as np
import pytest
from structlog.testing import capture_logs

from headrace import Record, Reject, Topology, bolt
from headrace.sinks import DiscardSink
from partition.consumer import Consumer, ConsumerPolicy
from partition.memory import (
    MemoryCatalogue,
    MemoryFetcher,
    MemoryMessage,
)
from partition.records import Partition, Position
from partition.recovery import Loss, Ways
from service.pipeline.build import PipelinePolicy, Ports, build_pipeline
from service.pipeline.dead_letter_sender import RESEND_SECONDS, DeadLetterSender
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from topology.sink import DeadLetter, DeadLetterSink, Delivered

PLACE = Partition("t", 0)


class Broker(DeadLetterSink):
    """A dead-letter topic whose broker says what the test tells it to."""

    name = "t.dead"

    def __init__(self) -> None:
        self.sent: list[tuple[int, DeadLetter]] = []
        self.untold: list[Delivered] = []

    def open(self, context) -> None:
        pass

    def send(self, letter: DeadLetter, token: int) -> None:
        self.sent.append((token, letter))

    def answer(self, token: int, error: str | None = None) -> None:
        self.untold.append(Delivered(token, error))

    def poll(self) -> list[Delivered]:
        told, self.untold = self.untold, []
        return told

    @property
    def pending(self) -> int:
        return len(self.sent)

    def flush(self, timeout_seconds: float) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def tokens(self) -> list[int]:
        return [token for token, _ in self.sent]


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def letters(broker) -> DeadLetterSender:
    return DeadLetterSender(broker)


def letter(offset: int = 0) -> DeadLetter:
    record = Record(b"x", MemoryMessage(PLACE, offset, b"x"))
    return DeadLetter(record, "bad", 1, "Reject", "parse", 0)


def durable(letters: DeadLetterSender, now: float) -> list[tuple[int, int]]:
    trees, edges = letters.poll(now)
    assert (trees.dtype, edges.dtype) == (np.int64, np.uint64)
    return list(zip(trees.tolist(), edges.tolist(), strict=True))


def test_a_letter_is_pending_until_the_broker_has_it(letters, broker):
    letters.send(letter(), tree=7, edge=2**64 - 1, record_id=0)
    assert durable(letters, 0.0) == []
    assert (letters.pending, letters.trees().tolist()) == (1, [7])
    broker.answer(broker.tokens[0])
    assert durable(letters, 0.0) == [(7, 2**64 - 1)]
    assert durable(letters, 0.0) == []
    assert (letters.pending, letters.refused) == (0, 0)


def test_a_range_that_is_skipped_is_told_and_durable_before_its_future_ends(letters, broker):
    """Promise 3; Storm 1: no silent jump."""
    loss = Loss(PLACE, "expired", Position(4), Position(10), 6, "and the log holds 10 to 20")
    future = letters.send_notice(loss)
    (token,) = broker.tokens
    notice = broker.sent[0][1]
    assert (notice.first_offset, notice.resume_offset, notice.lost) == (4, 10, 6)
    assert (notice.topic, notice.partition, notice.reason) == (*PLACE, "expired")
    assert letters.trees().tolist() == []
    broker.answer(token, "refused")
    assert durable(letters, 0.0) == []
    assert not future.done()
    assert durable(letters, RESEND_SECONDS) == []
    broker.answer(token)
    assert durable(letters, 9.0) == []
    assert future.done()


def test_how_long_letters_wait_is_told_from_when_the_last_of_them_became_durable(letters, broker):
    assert letters.waiting_seconds(5.0) == 0
    assert durable(letters, 10.0) == []
    assert letters.waiting_seconds(12.0) == 0
    letters.send(letter(0), 1, 10, 0)
    letters.send(letter(1), 2, 20, 0)
    assert durable(letters, 20.0) == []
    assert letters.waiting_seconds(24.0) == 4
    (first, _), (second, _) = broker.sent
    broker.answer(first, error="no leader")
    assert durable(letters, 30.0) == []
    assert letters.waiting_seconds(30.0) == 10, "an answer that refuses is none"
    broker.answer(second)
    assert len(durable(letters, 31.0)) == 1
    assert letters.waiting_seconds(33.0) == 2, "the other waits still"
    broker.answer(first)
    durable(letters, 40.0)
    assert letters.waiting_seconds(50.0) == 0


def test_answers_may_come_in_any_order(letters, broker):
    for tree in (1, 2, 3):
        letters.send(letter(tree), tree, tree * 10, 0)
    first, second, third = broker.tokens
    broker.answer(third)
    broker.answer(first)
    assert durable(letters, 0.0) == [(3, 30), (1, 10)]
    assert letters.trees().tolist() == [2]
    broker.answer(second)
    assert durable(letters, 0.0) == [(2, 20)]


def test_a_refused_letter_is_sent_again_after_a_pause_for_as_long_as_it_takes(letters, broker):
    letters.send(letter(), tree=7, edge=9, record_id=0)
    (token,) = broker.tokens
    now = 100.0
    for tries in range(1, 20):
        broker.answer(token, "not enough replicas")
        assert durable(letters, now) == []
        assert durable(letters, now + RESEND_SECONDS * 0.9) == []
        assert len(broker.sent) == tries
        now += RESEND_SECONDS
        assert durable(letters, now) == []
        assert len(broker.sent) == tries + 1
        assert (letters.pending, letters.refused) == (1, tries)
    broker.answer(token)
    assert durable(letters, now) == [(7, 9)]
    assert broker.sent[0][1] == broker.sent[-1][1]


def test_a_refused_letter_is_named_with_how_often_it_was_refused(letters, broker):
    letters.send(letter(41), tree=7, edge=9, record_id=0)
    letters.send(letter(42), tree=8, edge=9, record_id=0)
    first, second = broker.tokens
    with capture_logs() as told:
        for now in range(9):
            broker.answer(first, "too large")
            letters.poll(float(now))
        broker.answer(second, "too large")
        letters.poll(9.0)
    said = [(each["offset"], each["refusals"]) for each in told]
    assert said == [(41, 1), (41, 2), (41, 4), (41, 8), (42, 1)]
    assert {(each["topic"], each["partition"], each["size"]) for each in told} == {("t", 0, 1)}
    assert letters.refused == 10


def test_a_refused_letter_holds_back_no_other(letters, broker):
    letters.send(letter(0), 1, 10, 0)
    letters.send(letter(1), 2, 20, 0)
    broker.answer(broker.tokens[0], "too slow")
    broker.answer(broker.tokens[1])
    assert durable(letters, 0.0) == [(2, 20)]
    assert letters.trees().tolist() == [1]


@bolt
def parse(record: Record) -> int:
    if record.value == b"bad":
        raise Reject("bad")
    return 1


def test_the_offset_of_a_record_whose_letter_is_refused_does_not_pass(broker):
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
