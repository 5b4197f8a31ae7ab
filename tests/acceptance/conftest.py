"""Flights for the acceptance tests: each has a pipeline, a topic and a table of its own."""

from contextlib import closing
from typing import Any

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance import processes
from tests.acceptance.trial import Flights


@pytest.fixture
def make_flights(request, tmp_path):
    """`make_flights(breakable=False, ...)`: on the shared servers, or on some to be broken."""
    made: list[Flights] = []

    def make(*, breakable: bool = False, **options: Any) -> Flights:
        names = ["breakable_servers"] if breakable else ["kafka", "zookeeper"]
        servers = [request.getfixturevalue(name) for name in names]
        kafka, zookeeper = servers[0] if breakable else servers
        made.append(Flights(kafka, zookeeper, tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture(scope="session")
def _own_servers(tmp_path_factory):
    with (
        closing(EmbeddedKafka(tmp_path_factory.mktemp("breakable-kafka"))) as kafka,
        closing(EmbeddedZooKeeper(tmp_path_factory.mktemp("breakable-zookeeper"))) as zookeeper,
    ):
        yield kafka, zookeeper


@pytest.fixture
def breakable_servers(_own_servers):
    """A broker and a ZooKeeper that a test may stop, kill and freeze; nobody else uses them."""
    for server in _own_servers:
        server.open()
    yield _own_servers
    for server in _own_servers:
        if server.running:
            processes.thaw(server.pid)
