"""What a Kafka client of a sink complains about: told, and not in floods."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

log = structlog.get_logger()

_INTERVAL_SECONDS = 5.0


class BrokerComplaints:
    """Logs a client's errors as one event, each kind at most once in five seconds.

    A client that cannot resolve a name, or reach anybody, says so a thousand times a second.
    `refused` is the error by which a broker refuses our credentials; `last` is the newest text,
    for whoever gives up. The thread that polls the client calls it.
    """

    def __init__(self, event: str, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._topic = topic
        self._clock = clock
        self._next: dict[int, float] = {}
        self._held: dict[int, int] = {}
        self.refused: KafkaError | None = None
        self.last = ""

    def take(self, error: "KafkaError") -> None:
        """Take an error, as librdkafka's `error_cb`."""
        from confluent_kafka import KafkaError  # noqa: PLC0415 - see sinks/__init__

        kind, now = error.code(), self._clock()
        if kind == KafkaError._AUTHENTICATION:  # noqa: SLF001
            self.refused = error
        if kind != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - it says less than the one before
            self.last = error.str()
        if now < self._next.get(kind, 0.0):
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._next[kind] = now + _INTERVAL_SECONDS
        held = self._held.pop(kind, 0)
        log.warning(self._event, topic=self._topic, error=error.str(), held_back=held)
