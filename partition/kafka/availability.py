"""Whether brokers answer, as librdkafka's events and statistics tell.

A frozen broker, which holds its connections and answers nothing, is told by no error: in 35
seconds no event came and no callback was called. A broker that is back is told by no event
either while its logs are idle. The statistics show both, and asking would block.
"""

from collections.abc import Mapping
from typing import Any

_SILENCE_SECONDS = 5.0  # and the time that a broker may hold a fetch back


class Availability:
    """Whether a broker answered when one was last heard of. The owner thread calls it.

    With several brokers, one that answers is enough.
    """

    def __init__(self) -> None:
        self.patience_seconds = _SILENCE_SECONDS
        self._heard = False  # from a broker, ever
        self._outage = False  # told since a broker was last heard
        self._silent = False  # brokers owe answers, by the last statistics
        self._owed_since: dict[str, float] = {}  # microseconds of the statistics' clock
        self._throttled: dict[str, float] = {}  # seconds that a broker has told us to wait

    def __bool__(self) -> bool:
        return self._heard and not self._outage and not self._silent

    def begin(self, held_back_seconds: float) -> None:
        """Begin anew; brokers may hold a fetch back so long."""
        self.patience_seconds = _SILENCE_SECONDS + held_back_seconds
        self._heard = self._outage = self._silent = False
        self._owed_since = {}
        self._throttled = {}

    def hear(self) -> None:
        """Take note of records: a broker answered, which says nothing of now in an outage."""
        self._heard = True

    def lose(self) -> None:
        """Take note that all brokers are down."""
        self._outage = True

    def throttled(self, broker: str, seconds: float) -> None:
        """Take note that a broker answers so much later, as a quota is used up; 0: not any more."""
        self._throttled[broker] = seconds

    def take(self, told: Mapping[str, Any]) -> None:
        """Take librdkafka's statistics."""
        now = told.get("ts", 0)
        brokers = {
            name: broker
            for name, broker in told.get("brokers", {}).items()
            if broker.get("state") == "UP" and broker.get("source") != "logical"
        }
        waits = {name: now - self._owed(name, broker, now) for name, broker in brokers.items()}
        self._owed_since = {
            name: now - waited for name, waited in waits.items() if brokers[name]["waitresp_cnt"]
        }
        self._silent = bool(waits) and all(
            waited >= self._patience(brokers[name]) for name, waited in waits.items()
        )
        if waits and not self._silent:
            self._heard, self._outage = True, False

    def _patience(self, broker: dict[str, Any]) -> float:
        """Return for how many microseconds a broker may owe an answer."""
        throttled = self._throttled.get(broker.get("nodename", ""), 0.0)
        return (self.patience_seconds + throttled) * 1e6

    def _owed(self, name: str, broker: dict[str, Any], now: float) -> float:
        """Return since when a broker owes an answer; `now` if it owes none.

        One that is not asked anything, because all partitions are paused, owes nothing. An
        answer to another question in between begins the wait anew.
        """
        if not broker.get("waitresp_cnt"):
            return now
        answered: float = now - broker.get("rxidle", 0)
        return max(self._owed_since.get(name, now), answered)
