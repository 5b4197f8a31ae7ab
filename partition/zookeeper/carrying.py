"""Carries out generators' requests (`partition.offsets.requests`) on a connection."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from partition.errors import StoreError
from partition.offsets.offset_nodes import OffsetNodes
from partition.offsets.requests import (
    NodeChanged,
    NodeExists,
    OutcomeUnknown,
    Reply,
    Request,
    SessionEnded,
    Steps,
)
from partition.zookeeper.zookeeper_client import ZooKeeperConnection

T = TypeVar("T")
Work = Callable[[OffsetNodes], Steps[T]]


def carry_out(
    connection: ZooKeeperConnection,
    nodes: OffsetNodes,
    work: Work[T],
    end: float,
    *,
    tell: bool = True,
) -> T:
    """Carry out one generator's requests, one after the other, and return its result."""
    _note_end(connection, nodes)
    steps = work(nodes)
    try:
        request = next(steps)
        while True:
            try:
                reply = connection.answer(request, end, tell=tell)
            except SessionEnded as error:
                connection.acknowledge()
                nodes.session_ended()
                request = steps.throw(error)
            except (NodeExists, NodeChanged, OutcomeUnknown, StoreError) as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result


def carry_out_together(
    connection: ZooKeeperConnection,
    nodes: OffsetNodes,
    works: Sequence[tuple[Future[T], Work[T]]],
) -> None:
    """Carry out generators, none of which asks for what another one writes, and fill their futures.

    A round of replies takes as long as one of them would alone: the next request of each is sent,
    and then each is told its own reply. When the session ends amid a round, that is noted for all
    before any of them goes on, so that none sends anything in a later session than its own
    (`partition.offsets.ownership.Access`).
    """
    _note_end(connection, nodes)
    begun = [_Run(future, work(nodes)) for future, work in works if _is_wanted(future)]
    for run in begun:
        run.begin()
    while running := [run for run in begun if run.request is not None]:
        for run in running:
            run.send(connection)
        for run in running:
            run.receive()
        _note_end(connection, nodes)
        for run in running:
            run.go_on()


def _note_end(connection: ZooKeeperConnection, nodes: OffsetNodes) -> None:
    if connection.session_ended:
        connection.acknowledge()
        nodes.session_ended()


def _is_wanted(future: Future[T]) -> bool:
    return future.set_running_or_notify_cancel()


class _Run(Generic[T]):
    """One generator on its way. `request` is what it asks for next; None: it has ended."""

    def __init__(self, future: Future[T], steps: Steps[T]) -> None:
        self._future = future
        self._steps = steps
        self._wait: Callable[[], Reply] | None = None
        self._reply: Reply = None
        self._error: BaseException | None = None
        self.request: Request | None = None

    def begin(self) -> None:
        """Ask for its first request."""
        self._advance(lambda: next(self._steps))

    def send(self, connection: ZooKeeperConnection) -> None:
        """Send what it asks for."""
        self._wait, self._reply, self._error = None, None, None
        if self.request is None:
            return
        try:
            self._wait = connection.begin(self.request)
        except BaseException as error:  # noqa: BLE001 - the generator is told, whatever it is
            self._error = error

    def receive(self) -> None:
        """Wait for the reply."""
        if self._wait is None:
            return
        try:
            self._reply = self._wait()
        except BaseException as error:  # noqa: BLE001 - the generator is told, whatever it is
            self._error = error

    def go_on(self) -> None:
        """Tell the reply, or what went wrong, and ask for the next request."""
        error = self._error
        if error is None:
            self._advance(lambda: self._steps.send(self._reply))
        else:
            self._advance(lambda: self._steps.throw(error))

    def _advance(self, ask: Callable[[], Request]) -> None:
        self.request = None
        try:
            self.request = ask()
        except StopIteration as stop:
            self._future.set_result(stop.value)
        except BaseException as error:  # noqa: BLE001 - the future's owner hears of it
            self._future.set_exception(error)
