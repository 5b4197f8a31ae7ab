"""Runs a pipeline as a process: HTTP beside it, signals that drain it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from service.account import Account
from service.config import Config
from service.health import HealthCheck
from service.http import HttpServer
from service.metrics import Metrics
from service.page.status import StatusPage
from service.parts import wire
from service.service import Service
from service.snapshot import Snapshot
from topology.errors import InvalidTopology
from topology.topology import Topology


def run_pipeline(
    topology: Topology,
    config: Config,
    *,
    target: str | None = None,
    until_caught_up: bool = False,
    on_snapshot: Callable[[Snapshot], None] | None = None,
) -> Account:
    """Run a topology until it is stopped or caught up, and return its account.

    SIGTERM and SIGINT drain (promise 16); a second one ends the process at once. Must be
    called by the main thread, because signals are. `target` is where executors find the topology,
    "module:name": the spark engine needs it. Raises what cannot heal.
    """
    if config.pipeline.engine == "spark" and target is None:
        raise InvalidTopology(
            f"topology '{topology.name}': executors import it by name, so the engine \"spark\" "
            'needs target="module:name"; `headrace run` has it'
        )
    parts = wire(topology, config, target)
    service = Service(parts, drain_seconds=config.pipeline.drain_seconds)
    service.on_snapshot = on_snapshot
    server: HttpServer | None = None
    if config.http.port is not None:

        def shown() -> Snapshot | None:
            snapshot = service.snapshot
            if snapshot is None or config.http.show_errors:
                return snapshot
            return snapshot.without_errors()

        health = HealthCheck(shown)
        metrics = Metrics(lambda: service.snapshot)
        page = StatusPage(parts.name, topology, shown, health)
        server = HttpServer(config.http.host, config.http.port, metrics, health, page)
        server.open()
    try:
        with _draining(service.stop):
            return service.run(until_caught_up=until_caught_up)
    finally:
        if server is not None:
            server.close()


@contextmanager
def _draining(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into `stop`; a second one has its usual effect."""
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in signals}

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()  # no log here: the handler may have interrupted one that holds its lock
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in signals:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
