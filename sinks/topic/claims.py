"""What the topic of transactions says: who claims each line, and what is committed of it. Pure.

A claim is one message key: (pipeline, sink, line, the claim's own name). Its value tells the
transactional.id of the producer that made it, the epoch, and the last txid it committed. The
state of a line is the maximum over its claims, so neither the order of claims nor compaction,
which keeps the last message of each key, changes it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from topology.errors import SinkFailed, SinkFenced
from topology.transactional import Committed, Fence


class Claim(NamedTuple):
    """One owner's claim on a line; `name` is unique."""

    line: str
    name: str
    producer: str
    epoch: int
    txid: int


class _Value(msgspec.Struct):
    producer: str
    epoch: int
    txid: int


_SHOWN = 200  # of what is read, in an error
_decode_key = msgspec.json.Decoder(tuple[str, str, str, str]).decode
_decode_value = msgspec.json.Decoder(_Value).decode


class Claims:
    """The claims on the lines of one sink of one pipeline, as far as they were read."""

    def __init__(self, pipeline: str, sink: str) -> None:
        self._of = (pipeline, sink)
        self._claims: dict[str, dict[str, Claim]] = {}  # by line and name

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take the next message of the topic. Raises SinkFailed if nobody like us wrote it."""
        try:
            *of, line, name = _decode_key(key or b"")
            if tuple(of) != self._of:
                return
            claims = self._claims.setdefault(line, {})
            if value is None:
                claims.pop(name, None)
                return
            told = _decode_value(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            found = f"key {(key or b'')[:_SHOWN]!r}: {str(error)[:_SHOWN]}"
            message = f"what is read there is no claim of a sink: {found}"
            raise SinkFailed(message) from error
        claims[name] = Claim(line, name, told.producer, told.epoch, told.txid)

    def on(self, line: str) -> list[Claim]:
        """All claims on a line."""
        return list(self._claims.get(line, {}).values())

    def producers(self, lines: Iterable[str]) -> set[str]:
        """The transactional.ids of all that claim one of the lines."""
        return {claim.producer for line in lines for claim in self.on(line)}

    def committed(self, line: str) -> Committed:
        """What is committed of a line, and the highest epoch that claims it."""
        claims = self.on(line)
        return Committed(
            line,
            max((claim.epoch for claim in claims), default=0),
            max((claim.txid for claim in claims), default=0),
        )

    def check(self, wanted: Sequence[Fence]) -> None:
        """Raise SinkFenced when a line is claimed under a higher epoch than is wanted."""
        for fence in wanted:
            found = self.committed(fence.line).epoch
            if found > fence.epoch:
                raise SinkFenced(fence.line, fence.epoch, found)

    def written(self, claim: Claim) -> tuple[bytes, bytes]:
        """Key and value of the message that makes or renews a claim."""
        value = _Value(claim.producer, claim.epoch, claim.txid)
        return self._key(claim), msgspec.json.encode(value)

    def withdrawn(self, claim: Claim) -> tuple[bytes, None]:
        """Key and value of the message that takes a claim away."""
        return self._key(claim), None

    def _key(self, claim: Claim) -> bytes:
        return msgspec.json.encode((*self._of, claim.line, claim.name))
