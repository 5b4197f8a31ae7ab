"""Looks at records before any bolt does: payloads that are null, or larger than is wanted."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from partition.chunk import Chunk
from topology.signals import Reject

NullValues: TypeAlias = Literal["deliver", "skip", "dead-letter"]


class NullValue(Reject):
    """A record without a value (a tombstone) came where none is wanted."""

    def __init__(self) -> None:
        super().__init__("the record has no value, and null_values says 'dead-letter'")


class Oversized(Reject):
    """A record's value is larger than is wanted."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the value has {size} bytes, more than max_record_bytes = {limit}")
        self.size = size
        self.limit = limit


@dataclass(frozen=True, slots=True)
class ScreenPolicy:
    """Which records no bolt sees. Null keys and empty values are delivered as they are."""

    null_values: NullValues = "deliver"
    max_record_bytes: int | None = None


@dataclass(slots=True)
class Screened:
    """A chunk's records by what becomes of them, as places in it."""

    kept: list[int]
    skipped: list[int]
    refused: dict[int, Reject]


def screen(chunk: Chunk, policy: ScreenPolicy) -> Screened:
    """Look at every record of a chunk that may have an unusual one."""
    screened = Screened([], [], {})
    limit = policy.max_record_bytes
    messages: list[Any] = chunk.messages
    for place, message in enumerate(messages):
        size = len(message)
        if limit is not None and size > limit:
            screened.refused[place] = Oversized(size, limit)
        elif size or policy.null_values == "deliver" or message.value() is not None:
            screened.kept.append(place)
        elif policy.null_values == "skip":
            screened.skipped.append(place)
        else:
            screened.refused[place] = NullValue()
    return screened


def only(chunk: Chunk, places: list[int]) -> Chunk:
    """The records of a chunk at these places."""
    if len(places) == len(chunk):
        return chunk
    messages = [chunk.messages[place] for place in places]
    return Chunk(chunk.partition, chunk.offsets[np.array(places, np.intp)], messages)
