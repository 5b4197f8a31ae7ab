"""Bolts that chaos is put around, in several tests."""

import json
from typing import Any

from headrace import Record, bolt
from topology.advanced import AdvancedBolt, Collector
from topology.tuples import Tuple


@bolt
def same(value: int) -> int:
    return value


class Pairs(AdvancedBolt[dict[str, int], dict[str, Any]]):
    """Joins two rows of one remainder; a row that stays alone leaves alone, with the next tick."""

    tick_seconds = 3.0

    def __init__(self) -> None:
        self.kept: dict[int, Tuple[dict[str, int]]] = {}

    def process(
        self, tuple_: Tuple[dict[str, int]], collector: Collector[dict[str, Any]], /
    ) -> None:
        other = self.kept.pop(tuple_.value["n"] % 7, None)
        if other is None or not collector.pending([other]):
            self.kept[tuple_.value["n"] % 7] = tuple_
            return
        numbers = [other.value["n"], tuple_.value["n"]]
        collector.emit({"numbers": numbers}, anchors=[other, tuple_])
        collector.ack(other)
        collector.ack(tuple_)

    def tick(self, collector: Collector[dict[str, Any]], /) -> None:
        for tuple_ in collector.pending(self.kept.values()):
            collector.emit({"numbers": [tuple_.value["n"]]}, anchors=tuple_)
            collector.ack(tuple_)
        self.kept.clear()


@bolt
def number(record: Record) -> dict[str, int]:
    return {"n": json.loads(record.value or b"")}
