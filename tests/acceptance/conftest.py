"""Stages for the acceptance tests: each has a pipeline, a topic and a table of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance import processes
from tests.acceptance.harness import Stage

Breakable = tuple[EmbeddedKafka, EmbeddedZooKeeper]
MakeStage = Callable[..., Stage]


@pytest.fixture
def make_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """`make_stage(breakable=False, ...)`: on the shared servers, or on some that may be broken."""
    stages: list[Stage] = []

    def make(*, breakable: bool = False, **options: Any) -> Stage:
        if breakable:
            kafka, zookeeper = request.getfixturevalue("breakable_servers")
        else:
            kafka = request.getfixturevalue("kafka")
            zookeeper = request.getfixturevalue("zookeeper")
        folder = tmp_path / f"stage-{len(stages)}"
        folder.mkdir()
        stages.append(Stage(kafka, zookeeper, folder, **options))
        return stages[-1]

    yield make
    for stage in stages:
        stage.end()


@pytest.fixture(scope="session")
def _own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Breakable]:
    kafka = EmbeddedKafka(tmp_path_factory.mktemp("breakable-kafka"))
    zookeeper = EmbeddedZooKeeper(tmp_path_factory.mktemp("breakable-zookeeper"))
    try:
        yield kafka, zookeeper
    finally:
        kafka.close()
        zookeeper.close()


@pytest.fixture
def breakable_servers(_own_servers: Breakable) -> Iterator[Breakable]:
    """A broker and a ZooKeeper that a test may stop, kill and freeze; nobody else uses them."""
    for server in _own_servers:
        server.open()
    yield _own_servers
    for server in _own_servers:
        if server.running:
            processes.thaw(server.pid)
