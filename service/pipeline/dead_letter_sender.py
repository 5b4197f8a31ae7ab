"""Sending of dead letters: a record's tree is acked when its dead letter is durable."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import structlog

from acker.acker import Edges, Trees
from partition.recovery import Loss
from service.pipeline.context import Observer
from topology.sink import DeadLetter, DeadLetterSink, RangeNotice

log = structlog.get_logger()

RESEND_SECONDS = 1.0
_TOKENS = count(1)  # no task of a process uses another one's: that may be told of it yet


@dataclass(slots=True)
class _Sent:
    letter: DeadLetter | RangeNotice
    notice: Future[None] | None = None  # ends when a notice is durable
    record_id: int = -1
    tree: int = -1
    edge: int = 0
    refusals: int = 0


class DeadLetterSender:
    """Sends dead letters and keeps each until the broker has it (promise 3).

    A rejected one is sent again after a pause, without limit: its record's offset does not pass.
    The owner thread calls everything.
    """

    def __init__(self, sink: DeadLetterSink, observers: Sequence[Observer] = ()) -> None:
        self._sink = sink
        self._observers = observers
        self.name = sink.name
        self._sent: dict[int, _Sent] = {}
        self._again: list[tuple[float, int]] = []
        self.refused = 0
        """Deliveries that failed and were, or will be, repeated."""
        self._waiting_since: float | None = None

    def send(self, letter: DeadLetter, tree: int, edge: int, record_id: int) -> None:
        sent = _Sent(letter, None, record_id, tree, edge)
        self._send(sent)
        sent.letter = replace(letter, error=None)  # whose traceback keeps a chunk's values alive

    def send_notice(self, loss: Loss) -> Future[None]:
        notice = RangeNotice(
            topic=loss.partition.topic,
            partition=loss.partition.number,
            first_offset=loss.position.offset,
            resume_offset=loss.resume.offset,
            lost=loss.lost,
            reason=loss.reason,
            found=loss.found,
            noticed_at_ms=time.time_ns() // 1_000_000,
        )
        future: Future[None] = Future()
        self._send(_Sent(notice, future))
        return future

    def _send(self, sent: _Sent) -> None:
        token = next(_TOKENS)
        self._sent[token] = sent
        self._sink.send(sent.letter, token)

    def poll(self, now: float) -> tuple[Trees, Edges]:
        """Return the trees and edges whose dead letters became durable since the last call."""
        durable: list[_Sent] = []
        for delivered in self._sink.poll():
            if delivered.token not in self._sent:
                continue  # of a task that has failed
            if delivered.error is not None:
                self.refused += 1
                _log_rejection(self._sent[delivered.token], self._sink.name, delivered.error)
                self._again.append((now + RESEND_SECONDS, delivered.token))
                continue
            self._waiting_since = None
            sent = self._sent.pop(delivered.token)
            if sent.notice is not None:
                sent.notice.set_result(None)
                continue
            durable.append(sent)
            for observer in self._observers:
                observer.dead_letter_acked(sent.record_id)
        while self._again and self._again[0][0] <= now:
            token = self._again.pop(0)[1]
            self._sink.send(self._sent[token].letter, token)
        if not self._sent:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        trees = np.array([sent.tree for sent in durable], np.int64)
        return trees, np.array([sent.edge for sent in durable], np.uint64)

    @property
    def pending(self) -> int:
        return len(self._sent)

    def waiting_seconds(self, now: float) -> float:
        """Seconds since a dead letter last became durable while some wait."""
        return 0.0 if self._waiting_since is None else max(0.0, now - self._waiting_since)

    def trees(self) -> Trees:
        trees = [sent.tree for sent in self._sent.values() if sent.notice is None]
        return np.array(trees, np.int64)


def _log_rejection(sent: _Sent, sink: str, error: str) -> None:
    sent.refusals += 1
    if sent.refusals & (sent.refusals - 1):
        return
    letter = sent.letter
    if isinstance(letter, DeadLetter):
        record = letter.record
        topic, partition, offset = record.topic, record.partition, record.offset
        size = len(record.key or b"") + len(record.value or b"")
    else:
        topic, partition, offset, size = letter.topic, letter.partition, letter.first_offset, 0
    log.warning(
        "dead_letter_refused",
        sink=sink,
        topic=topic,
        partition=partition,
        offset=offset,
        size=size,
        refusals=sent.refusals,
        error=error,
    )
