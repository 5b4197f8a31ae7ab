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
        self._told_to_wait: dict[str, float] = {}  # seconds, since the last statistics
        self._muted_until: dict[str, float] = {}  # by broker, as `_owed_since`

    def __bool__(self) -> bool:
        return self._heard and not self._outage and not self._silent

    def begin(self, held_back_seconds: float) -> None:
        """Begin anew; brokers may hold a fetch back so long."""
        self.patience_seconds = _SILENCE_SECONDS + held_back_seconds
        self._heard = self._outage = self._silent = False
        self._owed_since, self._told_to_wait, self._muted_until = {}, {}, {}

    def hear(self) -> None:
        """Take note of records: a broker answered, which says nothing of now in an outage."""
        self._heard = True

    def lose(self) -> None:
        """Take note that all brokers are down."""
        self._outage = True

    def throttled(self, broker: str, seconds: float) -> None:
        """Take note that a broker answers nothing for so long, as a quota is used up.

        An answer beside it that is not throttled comes at the same moment, and ends nothing.
        """
        self._told_to_wait[broker] = max(seconds, self._told_to_wait.get(broker, 0.0))

    def take(self, told: Mapping[str, Any]) -> None:
        """Take librdkafka's statistics."""
        now = told.get("ts", 0)
        brokers = {
            name: broker
            for name, broker in told.get("brokers", {}).items()
            if broker.get("state") == "UP" and broker.get("source") != "logical"
        }
        self._mute(now)
        owed = {name: self._owed(name, broker, now) for name, broker in brokers.items()}
        self._owed_since = {
            name: since for name, since in owed.items() if brokers[name]["waitresp_cnt"]
        }
        self._silent = bool(owed) and all(
            now - max(since, self._muted_until.get(brokers[name].get("nodename", ""), since))
            >= self.patience_seconds * 1e6
            for name, since in owed.items()
        )
        if owed and not self._silent:
            self._heard, self._outage = True, False

    def _mute(self, now: float) -> None:
        for broker, seconds in self._told_to_wait.items():
            until = now + seconds * 1e6
            self._muted_until[broker] = max(until, self._muted_until.get(broker, until))
        self._told_to_wait = {}

    def _owed(self, name: str, broker: dict[str, Any], now: float) -> float:
        """Return since when a broker owes an answer; `now` if it owes none.

        One that is not asked anything, because all partitions are paused, owes nothing. An
        answer to another question in between begins the wait anew.
        """
        if not broker.get("waitresp_cnt"):
            return now
        answered: float = now - broker.get("rxidle", 0)
        return max(self._owed_since.get(name, now), answered)
