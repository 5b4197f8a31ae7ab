"""An advanced bolt that misbehaves by a seed, around one that does not."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from service.testing.chaos import Chaos, ChaosCounts
from topology.advanced import AdvancedBolt, Collector
from topology.bolt import Component
from topology.errors import InvalidTopology
from topology.tuples import Tuple

In = TypeVar("In")
Out = TypeVar("Out")


class ChaosAdvancedBolt(AdvancedBolt[In, Out]):
    """Stands in an advanced bolt's place and makes some of its calls fail.

    The chances are those of ChaosBolt, told by the tuple's value. A call that fails does so
    before the bolt has seen the tuple; ticks and drains do not fail.
    """

    def __init__(
        self,
        bolt: AdvancedBolt[In, Out] | Callable[[], AdvancedBolt[In, Out]],
        *,
        seed: int,
        fail: float = 0.0,
        retry: float = 0.0,
        reject: float = 0.0,
        delay_seconds: float = 0.0,
    ) -> None:
        """`bolt` is an AdvancedBolt, or makes one. Raises InvalidTopology, ValueError."""
        made: Any = bolt if isinstance(bolt, Component) or not callable(bolt) else bolt()
        if not isinstance(made, AdvancedBolt):
            message = f"ChaosAdvancedBolt got {bolt!r}; an AdvancedBolt or its class is allowed"
            raise InvalidTopology(message)
        self._bolt: AdvancedBolt[In, Out] = made
        self._chaos = Chaos(seed, fail, retry, reject, delay_seconds)
        self.__name__ = str(getattr(made, "__name__", type(made).__name__))
        self.tick_seconds = made.tick_seconds  # type: ignore[misc]  # of the inner bolt's class

    @property
    def counts(self) -> ChaosCounts:
        """What was done so far."""
        return self._chaos.counts

    def open(self) -> None:
        """Open the inner bolt."""
        self._bolt.open()

    def process(self, tuple_: Tuple[In], collector: Collector[Out], /) -> None:
        """Give the tuple to the inner bolt, or fail."""
        verdict = self._chaos.judge(tuple_.value)
        if verdict.delay_seconds:
            time.sleep(verdict.delay_seconds)
        if verdict.error is not None:
            raise verdict.error
        self._bolt.process(tuple_, collector)

    def tick(self, collector: Collector[Out], /) -> None:
        """Let the inner bolt tick."""
        self._bolt.tick(collector)

    def drain(self, collector: Collector[Out], /) -> None:
        """Let the inner bolt drain."""
        self._bolt.drain(collector)

    def partition_assigned(self, topic: str, partition: int) -> None:
        """Tell the inner bolt."""
        self._bolt.partition_assigned(topic, partition)

    def partition_revoked(self, topic: str, partition: int) -> None:
        """Tell the inner bolt."""
        self._bolt.partition_revoked(topic, partition)

    def close(self) -> None:
        """Close the inner bolt."""
        self._bolt.close()
