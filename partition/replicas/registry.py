"""The contract of a register of replicas: who there is, and who may hold what."""

from concurrent.futures import Future
from typing import Protocol

from partition.replicas.heartbeat import Report, View


class Registry(Protocol):
    """One replica's way to the register. Any thread may call; nothing waits.

    What is asked while the server is away is answered when it is back; or fails with
    StoreUnavailable when the store that carries it is closed.
    """

    @property
    def last_contact(self) -> float | None:
        """When the newest request was sent that was answered, in monotonic seconds.

        The session, and with it the membership, lived then for a whole time-out. None: nothing
        was answered yet.
        """
        ...

    def beat(self, report: Report) -> Future[View]:
        """Register if need be, say what we hold, and bring what is asked of us.

        Raises ReplicaReplaced, StoreCorrupt, StoreUnavailable and StoreError. One at a time.
        """
        ...

    def leave(self) -> Future[None]:
        """Take ourselves off the register; no beat may follow. Raises as `beat`."""
        ...
