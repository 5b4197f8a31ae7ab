"""Dead letters on their way: a record's tree is acked when its letter is durable."""

from dataclasses import dataclass

import numpy as np
import structlog

from acker.acker import Edges, Trees
from topology.sink import DeadLetter, DeadLetterSink

log = structlog.get_logger()

RESEND_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Sent:
    letter: DeadLetter
    tree: int
    edge: int


class Letters:
    """Sends dead letters and keeps each until the broker has it (promise 3).

    A letter that the broker refused is sent again after a pause, for as long as it
    takes: its record's offset does not pass. The owner thread calls everything.
    """

    def __init__(self, sink: DeadLetterSink) -> None:
        self._sink = sink
        self._sent: dict[int, _Sent] = {}
        self._again: list[tuple[float, int]] = []
        self._token = 0
        self._written = 0
        self._refused = 0

    def send(self, letter: DeadLetter, tree: int, edge: int) -> None:
        """Send a letter; `poll` gives the tree and edge back when it is durable."""
        self._token += 1
        self._sent[self._token] = _Sent(letter, tree, edge)
        self._sink.send(letter, self._token)

    def poll(self, now: float) -> tuple[Trees, Edges]:
        """The trees and edges whose letters have become durable since the last call."""
        durable: list[_Sent] = []
        for delivered in self._sink.poll():
            if delivered.error is None:
                durable.append(self._sent.pop(delivered.token))
                continue
            self._refused += 1
            log.warning("dead_letter_refused", sink=self._sink.name, error=delivered.error)
            self._again.append((now + RESEND_SECONDS, delivered.token))
        while self._again and self._again[0][0] <= now:
            token = self._again.pop(0)[1]
            self._sink.send(self._sent[token].letter, token)
        self._written += len(durable)
        trees = np.fromiter((sent.tree for sent in durable), np.int64, len(durable))
        edges = np.fromiter((sent.edge for sent in durable), np.uint64, len(durable))
        return trees, edges

    @property
    def pending(self) -> int:
        """Letters that are not durable yet."""
        return len(self._sent)

    @property
    def written(self) -> int:
        """Letters that are durable."""
        return self._written

    @property
    def refused(self) -> int:
        """Deliveries that failed and were, or will be, tried again."""
        return self._refused

    def trees(self) -> list[int]:
        """The trees that wait for a letter."""
        return [sent.tree for sent in self._sent.values()]
