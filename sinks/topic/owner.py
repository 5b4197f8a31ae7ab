"""Who may commit which lines: one producer per process, fenced by whoever takes a line over.

Kafka fences producers, not lines, and only the transactions of one producer are atomic. So a
process has one producer for all its lines, and a line is claimed in the topic of transactions:

1. write the claim (line, epoch, my producer),
2. fence every other producer that claims the line, by opening one of its name,
3. read the topic to its end; if there is a claim of another producer still, go on with 2,
4. give way if a claim has a higher epoch,
5. take away the claims that were fenced, and renew mine with the txid that was found.

My producer then commits nothing on that line once a later owner has come as far as 2. A producer
that was fenced opens itself again and claims anew what it needs: it goes on with the lines that
nobody took from it, and sees the claim that took the others, since 1 comes before 2.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Protocol, TypeVar
from uuid import uuid4

from sinks.shares import is_to_commit
from sinks.topic.claims import Claim, Claims
from sinks.topic.messages import Message
from sinks.topic.producer import TransactionLost
from topology.errors import SinkFailed
from topology.transactional import Committed, Fence, Share

Result = TypeVar("Result")
_MOST_LOST = 5  # in a row: the broker refuses them, or others go on claiming our lines


class ClaimsReader(Protocol):
    """The topic of transactions: see ClaimsTopic."""

    topic: str
    claims: Claims

    def read(self, *, pending: bool) -> None:
        """Read on, with `pending` past the transactions that are open now."""
        ...

    def close(self) -> None:
        """Let go of the consumer."""
        ...


class Transactional(Protocol):
    """A producer of transactions: see TransactionalProducer."""

    name: str
    is_lost: bool

    def open(self) -> None:
        """Fence every other of this name, and be ready."""
        ...

    def commit(self, messages: Iterable[Message]) -> None:
        """Send in one transaction. Raises TransactionLost."""
        ...

    def close(self) -> None:
        """Let go of the producer."""
        ...


class Owner:
    """The lines that this process has claimed, and the producer that commits them. One thread."""

    def __init__(
        self, name: str, reader: ClaimsReader, make: Callable[[str], Transactional]
    ) -> None:
        self._name = name  # the transactional.id: no other owner ever has it
        self._reader = reader
        self._make = make
        self._producer: Transactional | None = None
        self._held: dict[str, Claim] = {}  # by line: good as long as the producer is

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Claim the lines, then say what is committed. Raises SinkFenced."""

        def claim(producer: Transactional) -> list[Committed]:
            self._claim(producer, fences)
            return [self._found(fence.line) for fence in fences]

        return self._settled(claim)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what is committed, also of a commit whose outcome was not known."""
        if self._producer is not None:
            self._current()
        self._reader.read(pending=True)
        return [self._reader.claims.committed(line) for line in lines]

    def commit(self, shares: Sequence[Share], messages: Iterable[Message]) -> None:
        """Send messages and txids in one transaction; see TransactionalSink.commit."""

        def commit(producer: Transactional) -> None:
            held = self._held
            new = [s for s in shares if s.line not in held or held[s.line].epoch < s.epoch]
            if new:
                self._claim(producer, [Fence(share.line, share.epoch) for share in new])
            if not self._is_to_commit(shares):
                return
            moved = {s.line: self._held[s.line]._replace(txid=s.txid) for s in shares}
            producer.commit(chain(messages, map(self._written, moved.values())))
            self._held |= moved

        self._settled(commit)

    def _is_to_commit(self, shares: Sequence[Share]) -> bool:
        """See `is_to_commit`; a gap is judged by what is read, not by what is remembered."""
        try:
            return is_to_commit(shares, [self._found(share.line) for share in shares])
        except SinkFailed:
            self._reader.read(pending=True)
            found = [self._reader.claims.committed(share.line) for share in shares]
            return is_to_commit(shares, found)

    def close(self) -> None:
        """Let go of the clients; the claims stay."""
        self._reader.close()
        if self._producer is not None:
            self._producer.close()
        self._producer = None
        self._held.clear()

    def _settled(self, step: Callable[[Transactional], Result]) -> Result:
        """Run a step, anew with a new producer each time a transaction was lost.

        It is when another owner has fenced our producer, which goes on if it may.
        """
        for _ in range(_MOST_LOST):
            with suppress(TransactionLost):
                return step(self._current())
        return step(self._current())

    def _current(self) -> Transactional:
        """Our producer, opened anew if it was lost. By then, what it committed is decided."""
        if self._producer is None or self._producer.is_lost:
            self._held.clear()
            producer = self._make(self._name)
            producer.open()
            self._producer = producer
        return self._producer

    def _claim(self, producer: Transactional, fences: Sequence[Fence]) -> None:
        lines = [fence.line for fence in fences]
        self._reader.read(pending=False)  # one who froze with an open transaction is fenced first
        self._reader.claims.check(fences)
        mine = [Claim(fence.line, uuid4().hex, producer.name, fence.epoch, 0) for fence in fences]
        producer.commit(map(self._written, mine))
        fenced = {producer.name}
        while True:
            others = self._reader.claims.producers(lines) - fenced
            for name in sorted(others):
                other = self._make(name)
                other.open()
                other.close()
            fenced |= others
            self._reader.read(pending=True)
            if not self._reader.claims.producers(lines) - fenced:
                break
        claims = self._reader.claims
        claims.check(fences)
        found = [claim._replace(txid=claims.committed(claim.line).txid) for claim in mine]
        names = {claim.name for claim in mine}
        old = [claim for line in lines for claim in claims.on(line) if claim.name not in names]
        producer.commit(chain(map(self._written, found), map(self._withdrawn, old)))
        self._held |= {claim.line: claim for claim in found}

    def _found(self, line: str) -> Committed:
        claim = self._held[line]
        return Committed(line, claim.epoch, claim.txid)

    def _written(self, claim: Claim) -> Message:
        key, value = self._reader.claims.written(claim)
        return Message(self._reader.topic, value, key)

    def _withdrawn(self, claim: Claim) -> Message:
        key, value = self._reader.claims.withdrawn(claim)
        return Message(self._reader.topic, value, key)
