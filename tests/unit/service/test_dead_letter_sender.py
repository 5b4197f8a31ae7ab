import numpy as np
import pytest
from structlog.testing import capture_logs

from headrace import Record
from headrace.sinks import MemoryDeadLetters
from partition.records import Partition, Position
from partition.recovery import Loss
from service.pipeline.dead_letter_sender import RESEND_SECONDS, DeadLetterSender
from tests.support.messages import message
from topology.sink import DeadLetter, Delivered

PLACE = Partition("t", 0)


class Broker(MemoryDeadLetters):
    def __init__(self):
        super().__init__()
        self.sent, self.answers = [], []

    def send(self, letter, token):
        self.sent.append((token, letter))

    def answer(self, token, error=None):
        self.answers.append(Delivered(token, error))

    def poll(self):
        answers, self.answers = self.answers, []
        return answers

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
    send(sender, 41)
    (token,) = broker.tokens
    now = 100.0
    with capture_logs() as logged:
        for attempts in range(1, 20):
            broker.answer(token, "not enough replicas")
            assert durable(sender, now) == durable(sender, now + RESEND_SECONDS * 0.9) == []
            assert len(broker.sent) == attempts
            now += RESEND_SECONDS
            assert durable(sender, now) == []
            assert len(broker.sent) == attempts + 1
            assert (sender.pending, sender.refused) == (1, attempts)
        send(sender, 42)
        broker.answer(broker.tokens[-1], "too large")
        durable(sender, now)
    broker.answer(token)
    assert durable(sender, now) == [(7, 9)]
    assert broker.sent[0][1] == broker.sent[-2][1]
    said = [(each["offset"], each["refusals"]) for each in logged]
    assert said == [(41, 1), (41, 2), (41, 4), (41, 8), (41, 16), (42, 1)]
    assert {(each["topic"], each["partition"], each["size"]) for each in logged} == {("t", 0, 1)}
