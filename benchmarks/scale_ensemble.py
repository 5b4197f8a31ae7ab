"""A model of a ZooKeeper ensemble: queues, and what a request costs in each. Pure."""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """What an ensemble can do; docs/scale.md says where the figures are from."""

    servers: int = 3
    reads_per_second: float = 50_000.0  # of one server
    syncs_per_second: float = 50_000.0  # through the leader: no disk, no vote
    writes_per_second: float = 21_000.0  # of all servers together
    operations_per_second: float = 100_000.0  # inside writes of several operations
    sent_bytes_per_second: float = 110e6  # by one server: 1 Gbit/s
    written_bytes_per_second: float = 55e6  # the leader sends each write to two others
    round_trip_seconds: float = 0.001  # without a queue, and with Python's part of it
    session_seconds: float = 10.0
    tick_seconds: float = 2.0  # sessions expire at whole ticks

    def expires_at(self, heard_at: float, phase: float) -> float:
        """When a session has expired that was heard last at `heard_at`; a tick is at `phase`."""
        ticks = math.ceil((heard_at + self.session_seconds - phase) / self.tick_seconds)
        return phase + ticks * self.tick_seconds


@dataclass(frozen=True, slots=True)
class Ask:
    """Requests of one client that are sent together; answered when the last one is."""

    gets: int = 0
    sent_bytes: float = 0.0  # of all answers
    syncs: int = 0
    writes: int = 0
    operations: int = 0  # of all writes
    written_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """What was asked, per second of the time looked at."""

    gets: float = 0.0
    syncs: float = 0.0
    writes: float = 0.0
    sent_bytes: float = 0.0
    written_bytes: float = 0.0
    leader_busy: float = 0.0  # of its time; 1 is all of it
    servers_busy: float = 0.0  # the same, for answering reads

    def __add__(self, other: "Load") -> "Load":
        """Both."""
        return Load(*(getattr(self, name) + getattr(other, name) for name in Load.__slots__))

    def __truediv__(self, seconds: float) -> "Load":
        """This in so many seconds, per second."""
        return Load(*(getattr(self, name) / seconds for name in Load.__slots__))


@dataclass(slots=True)
class Ensemble:
    """Requests in the order in which they arrive: writes and syncs at the leader, gets at each."""

    can: ZooKeeper
    loads: dict[int, Load] = field(default_factory=dict)  # by the second of asking
    _leader_free: float = 0.0
    _server_free: dict[int, float] = field(default_factory=dict)

    def answered_at(self, now: float, client: int, asked: Ask) -> float:
        """When the answer is back; calls come in the order of `now`."""
        can, server = self.can, client % self.can.servers
        done = now + can.round_trip_seconds / 2
        leaders = (
            asked.syncs / can.syncs_per_second
            + asked.writes / can.writes_per_second
            + asked.operations / can.operations_per_second
            + asked.written_bytes / can.written_bytes_per_second
        )
        if leaders:
            done = self._leader_free = max(done, self._leader_free) + leaders
        servers = asked.gets / can.reads_per_second + asked.sent_bytes / can.sent_bytes_per_second
        if servers:
            done = self._server_free[server] = max(done, self._server_free.get(server, 0)) + servers
        load = Load(
            asked.gets,
            asked.syncs,
            asked.writes,
            asked.sent_bytes,
            asked.written_bytes,
            leaders,
            servers / can.servers,
        )
        self.loads[int(now)] = self.loads.get(int(now), Load()) + load
        return done + can.round_trip_seconds / 2
