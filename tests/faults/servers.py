import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.support.postgres_server import EmbeddedPostgres
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from sinks.storage import Storage
from tests.acceptance.harness import Launch
from tests.acceptance.trial import Trial
from tests.faults.judge import Outcome
from tests.support.near_a_store import StoreProxy
from tests.support.seaweed import EmbeddedSeaweed
from tests.support.store_faults import weather

_BAD_SHARE = 0.03  # of all requests to the object store


class Lake(NamedTuple):
    server: EmbeddedSeaweed
    proxy: StoreProxy

    def storage(self, folder: str) -> Storage:
        return self.server.storage(folder)


def _missing() -> Any:
    raise AssertionError("no such server")


@dataclass(frozen=True)
class Servers:
    """A broker and a ZooKeeper for all cases, a database and a lake on demand, and a folder."""

    kafka: EmbeddedKafka
    zookeeper: EmbeddedZooKeeper
    folder: Path
    keep: Path | None = None  # where the folders of failed cases go
    postgres: Callable[[], EmbeddedPostgres] = _missing
    lake: Callable[[], Lake] = _missing

    def play(
        self, topologies: str, case: Callable[[Trial], Outcome], launch: Launch | None = None
    ) -> Outcome:
        """Play a case on a pipeline of its own; an error is a complaint.

        Nothing is left behind but, in `keep`, the folder of a failed case.
        """
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            trial = Trial(
                self.kafka, self.zookeeper, Path(folder), topologies=topologies, launch=launch
            )
            try:
                outcome = case(trial)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - one of many
                outcome = Outcome(said=(f"{type(error).__name__}: {error}",))
            finally:
                trial.end()
            if self.keep is not None and not outcome.is_good:
                with suppress(shutil.Error):  # raised at the end, of what cannot be copied
                    shutil.copytree(folder, self.keep / trial.name, symlinks=True)
            return outcome


@contextmanager
def started(keep: Path | None = None, seed: str = "") -> Iterator[Servers]:
    """Servers on free ports of 127.0.0.1, in a temporary folder."""
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(
            prefix="headrace-faults-", ignore_cleanup_errors=True
        )
        folder = Path(stack.enter_context(temporary))
        lock = threading.RLock()
        found: dict[type, Any] = {}

        def opened(kind: Any) -> Any:
            with lock:
                if kind not in found:
                    found[kind] = server = kind(folder / kind.name)
                    if kind is EmbeddedPostgres:
                        stack.callback(server.remove_data)
                    stack.callback(server.close)
                    server.open()
                return found[kind]

        def lake() -> Lake:
            with lock:
                if Lake not in found:
                    store = opened(EmbeddedSeaweed)
                    proxy = stack.enter_context(StoreProxy(store.address).running())
                    proxy.fault = weather(seed, _BAD_SHARE)
                    found[Lake] = Lake(store, proxy)
                return found[Lake]

        yield Servers(
            opened(EmbeddedKafka), opened(EmbeddedZooKeeper), folder, keep,
            postgres=lambda: opened(EmbeddedPostgres), lake=lake,
        )  # fmt: skip
