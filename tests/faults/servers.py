"""What all cases share."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance.harness import Launch
from tests.acceptance.trial import Trial


@dataclass(frozen=True)
class Servers:
    """A broker and a ZooKeeper that live as long as all cases, and a folder."""

    kafka: EmbeddedKafka
    zookeeper: EmbeddedZooKeeper
    folder: Path
    keep: Path | None = None  # where the folders of failed cases go

    @contextmanager
    def trial(self, topologies: str, launch: Launch | None = None) -> Iterator[Trial]:
        """A pipeline of its own, of which nothing is left behind."""
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            trial = Trial(
                self.kafka, self.zookeeper, Path(folder), topologies=topologies, launch=launch
            )
            try:
                yield trial
            finally:
                trial.end()


@contextmanager
def started(keep: Path | None = None) -> Iterator[Servers]:
    """Servers on free ports of 127.0.0.1, in a temporary folder."""
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="headrace-faults-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        servers = Servers(
            EmbeddedKafka(folder / "kafka"), EmbeddedZooKeeper(folder / "zookeeper"), folder, keep
        )
        for server in (servers.kafka, servers.zookeeper):
            stack.callback(server.close)
            server.open()
        yield servers
