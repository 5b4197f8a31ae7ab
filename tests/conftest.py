"""Servers for the integration tests: once per worker, on free ports, in temporary directories.

A test that kills or freezes a server starts one of its own; the Spark heals.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_timeout
import structlog
from hypothesis import Phase, settings

from examples.support.postgres_server import EmbeddedPostgres
from service.devservers.process import EmbeddedServer
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from sinks.spark.driver import SparkDriver
from tests import longest_first, spark_classes
from tests.acceptance.trial import Trial
from tests.support import patience, servers
from tests.support.kafka import KafkaWorld
from tests.support.seaweed import EmbeddedSeaweed
from tests.support.spark import SharedSpark
from topology.masking import mask

MakeTopic = Callable[..., str]
ShareServer = Callable[..., Any]
S = TypeVar("S", bound=EmbeddedServer)
SERVERS = pytest.StashKey[ExitStack]()

# No test lasts until a JVM's best compiler has paid: without it, Spark's start costs a third less.
os.environ.setdefault("JDK_JAVA_OPTIONS", spark_classes.LIGHT)
spark_classes.use()

# A shell that runs the tests in the background has SIGINT ignored, and so would all they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

EmbeddedServer.start_seconds = patience.seconds(EmbeddedServer.start_seconds)

# How long an example takes says nothing. `make nightly` runs more examples.
settings.register_profile("nightly", deadline=None)
settings.register_profile("tests", deadline=None, max_examples=30)
# Finding a smaller example of a failure may take minutes, and can be done where there is time.
settings.register_profile(
    "unshrunk", settings.get_profile("tests"), phases=set(Phase) - {Phase.shrink}, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> object:
    """Scale what a test as a whole may take, too."""
    scaled = settings._replace(timeout=patience.seconds(settings.timeout))
    return pytest_timeout.pytest_timeout_set_timer(item, scaled)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from what is loaded, now and later: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# PySpark leaves the sockets by which it fetched rows to the garbage collector.
AFTER_SPARK = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first, and mark tests that run in a process with a Spark."""
    items.sort(key=lambda item: longest_first.place(item.nodeid))
    with_spark: set[Path] = set()
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "shared_spark" in names and not {"spark", "driver"}.isdisjoint(names):
            with_spark.add(item.path)
        if item.path in with_spark:
            item.add_marker(AFTER_SPARK)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    if config.getvalue("dist") == "loadfile":
        return longest_first.Scheduling(config, log)
    return None


@pytest.fixture(autouse=True)
def own_secrets() -> Iterator[None]:
    """Hide in no test's texts what the secrets of another were."""
    yield
    mask.learn(())


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Keep from other tests the level that a test's service has set."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def shared_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Callable[[Path], S]], S]:
    """`shared_server(name, make)`: one server for all workers of the run.

    Servers are closed at the end of the session, not in a fixture: whoever started one may wait
    for the other workers, which a test's time limit must not count.
    """
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def shared(name: str, make: Callable[[Path], S]) -> S:
        made = servers.shared_by_workers(run / f"shared-{name}", make)
        return request.config.stash[SERVERS].enter_context(made)

    return shared


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS] = ExitStack()


@pytest.hookimpl(tryfirst=True)  # before pytest lets other runs remove our folders
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[SERVERS].close()


@pytest.fixture(scope="session")
def kafka(shared_server: ShareServer) -> EmbeddedKafka:
    """A broker shared by every test; use topics of your own."""
    return shared_server("kafka", EmbeddedKafka)


@pytest.fixture(scope="session")
def zookeeper(shared_server: ShareServer) -> EmbeddedZooKeeper:
    """A ZooKeeper shared by every test; use a root path of your own."""
    return shared_server("zookeeper", EmbeddedZooKeeper)


@pytest.fixture(scope="session")
def postgres(shared_server: ShareServer) -> EmbeddedPostgres:
    """A PostgreSQL shared by every test; use a schema of your own."""
    return shared_server("postgres", EmbeddedPostgres)


@pytest.fixture(scope="session")
def seaweed(shared_server: ShareServer) -> EmbeddedSeaweed:
    """An object store shared by every test; use a folder of your own in its bucket."""
    return shared_server("seaweed", EmbeddedSeaweed)


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SharedSpark]:
    """A Spark, which starts when it is needed."""
    shared = SharedSpark()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def spark(shared_spark: SharedSpark) -> Iterator[SparkDriver]:
    """The Spark that all files share; use a warehouse of your own, and leave it healed."""
    yield shared_spark.driver
    gc.collect()  # PySpark leaves sockets to it, which other files may not ignore


@pytest.fixture(scope="module")
def no_spark(shared_spark: SharedSpark) -> None:
    """The shared Spark has ended: for files whose tests start their own in this process."""
    shared_spark.close()


@pytest.fixture
def trial(
    request: pytest.FixtureRequest,
    kafka: EmbeddedKafka,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
) -> Iterator[Trial]:
    """A pipeline on the shared servers; the test module's TOPOLOGIES names its topologies."""
    folder = tmp_path / "trial"
    folder.mkdir()
    topologies = getattr(request.module, "TOPOLOGIES", "tests.acceptance.troubled")
    made = Trial(kafka, zookeeper, folder, topologies=topologies)
    yield made
    made.end()


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> MakeTopic:
    """`topic(partitions=1, config={})` creates a topic of your own and returns its name."""

    return KafkaWorld(kafka).topic
