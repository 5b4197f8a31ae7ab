"""Where a partition stands that is read range by range: what is known, what was given. Pure."""

from collections import deque
from dataclasses import replace

import numpy as np

from partition.records import Chunk, Position
from transactions.rows import RangeDigest

_MOST_RECORDS = 20_000  # kept behind a range's end; a client that is paused fetches them again
_MOST_BYTES = 16 * 1024 * 1024  # of payload


class Standing:
    """One partition's records on their way from a client to a range. One owner calls everything.

    The client has brought everything below `known_to`; of that, what lies below `given_to` was
    given out, and the rest waits. Both pass over gaps.
    """

    def __init__(self, position: Position) -> None:
        """A client is to begin to read at `position`."""
        self.known_to = position.offset
        self.given_to = position.offset
        self._topic_id = position.topic_id
        self._epoch = -1  # what waits was brought under this leader or a later one
        self._waiting: deque[Chunk] = deque()
        self._log_end: int | None = None
        self.end = position.offset
        """Where the range ends."""
        self.digest = RangeDigest()
        """Of what was given of the range."""
        self.last_epoch: int | None = None
        """The leader epoch of the last record given of the range; None: it is not known."""
        self.heard_at = 0.0
        """When something new was heard, on the owner's clock."""
        self.asked_since: float | None = None
        """Since when the client has been asked for this and has had nothing; None: it is not so.

        On the owner's clock. A bolt that holds the owner up is no silence of the log's.
        """
        self.is_held = False
        """Whether nothing is to be given out."""
        self.is_paused = False
        """Whether the client is told to bring nothing."""
        self.is_broken = False
        """Whether the client brings nothing more."""

    def is_at(self, position: Position, leader_epoch: int | None = None) -> bool:
        """Whether a range that begins there needs no other client's place.

        `leader_epoch` is the one that the range was planned in. Under a later leader than that of
        what waits the log may have been cut off, and written anew.
        """
        same_log = self._topic_id == position.topic_id
        same_log = same_log and (leader_epoch is None or leader_epoch <= self._epoch)
        return same_log and self.given_to == position.offset and not self.is_broken

    def begin(self, end: int, now: float, leader_epoch: int | None = None) -> None:
        """Give out from `given_to` on, up to before `end`; `leader_epoch` as for `is_at`."""
        if leader_epoch is not None:
            self._epoch = max(leader_epoch, self._epoch)
        self.end = end
        self.digest = RangeDigest()
        self.last_epoch = None
        self.heard_at = now
        self.asked_since = None
        self.is_held = False
        self._pass_gap()

    def add(self, chunk: Chunk, now: float) -> None:
        """Learn what the client has brought."""
        self.heard_at = now
        self.asked_since = None
        self._log_end = None
        known = int(np.searchsorted(chunk.offsets, self.known_to))
        if known == len(chunk):
            return
        chunk = _from(chunk, known) if known else chunk
        self.known_to = int(chunk.offsets[-1]) + 1
        if chunk.leader_epochs:
            self._epoch = max(chunk.leader_epochs[-1][1], self._epoch)
        self._waiting.append(chunk)
        self._pass_gap()

    def log_ends(self, end: int, now: float) -> None:
        """Learn that no record lies before `end` but those that were brought."""
        self.heard_at = now
        self.asked_since = None
        self.known_to = self._log_end = max(end, self.known_to)
        self._pass_gap()

    def take(self, limit: int) -> Chunk | None:
        """Give out the next records of the range, at most `limit`; None if there is none."""
        if not self._waiting:
            return None
        chunk = self._waiting[0]
        count = min(limit, len(chunk))
        if chunk.offsets[count - 1] >= self.end:
            count = int(np.searchsorted(chunk.offsets[:count], self.end))
        if not count:
            return None
        if count < len(chunk):
            self._waiting[0] = _from(chunk, count)
            chunk = _before(chunk, count)
        else:
            self._waiting.popleft()
        lengths = np.fromiter(map(len, chunk.messages), np.int64, len(chunk))
        self.digest.add(chunk.offsets, lengths)
        if chunk.leader_epochs:
            self.last_epoch = chunk.leader_epochs[-1][1]
        self.given_to = int(chunk.offsets[-1]) + 1
        self._pass_gap()
        return chunk

    @property
    def has_ended(self) -> bool:
        """Whether the whole range was given out."""
        return self.given_to >= self.end

    @property
    def is_short(self) -> bool:
        """Whether the log ends before the range does, as far as it was told."""
        return self._log_end is not None and self.known_to < self.end

    @property
    def has_plenty(self) -> bool:
        """Whether enough waits for the next range, after the end of this one."""
        if not self.has_ended:
            return False
        if sum(map(len, self._waiting)) >= _MOST_RECORDS:
            return True
        return sum(sum(map(len, chunk.messages)) for chunk in self._waiting) >= _MOST_BYTES

    def _pass_gap(self) -> None:
        """Take as given what holds no record."""
        known_to = int(self._waiting[0].offsets[0]) if self._waiting else self.known_to
        self.given_to = max(self.given_to, min(known_to, self.end))


def _before(chunk: Chunk, place: int) -> Chunk:
    """A chunk's records before the one at a place, which is not its first."""
    last = int(chunk.offsets[place - 1])
    epochs = tuple(run for run in chunk.leader_epochs if run[0] <= last)
    offsets, messages = chunk.offsets[:place], chunk.messages[:place]
    return replace(chunk, offsets=offsets, messages=messages, leader_epochs=epochs)


def _from(chunk: Chunk, place: int) -> Chunk:
    """A chunk's records from the one at a place on, which is there."""
    first = int(chunk.offsets[place])
    epochs = tuple(run for run in chunk.leader_epochs if run[0] > first)
    led_by = [epoch for start, epoch in chunk.leader_epochs if start <= first]
    if led_by:
        epochs = ((first, led_by[-1]), *epochs)
    offsets, messages = chunk.offsets[place:], chunk.messages[place:]
    return replace(chunk, offsets=offsets, messages=messages, leader_epochs=epochs)
