"""P06: a bolt forks. That is refused, the record is a dead letter, and the process goes on."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded.kafka import EmbeddedKafka
from service.embedded.zookeeper import EmbeddedZooKeeper
from tests.acceptance.trial import Trial, places, rows_of
from tests.worlds.looking import descriptors

pytestmark = pytest.mark.integration

COUNTS = (200, 200, 200, 40)  # records, by partition; how it forks hangs on that
REFUSED = 3  # the last one executes a program, and spawns
TROUBLE_EVERY = 10
MOST_PIPES = 120  # 80 of the pools, until they are collected; forks would leave 160 more
TROUBLE = [place for place in places(*COUNTS) if place[1] % TROUBLE_EVERY == 0]
LETTERS = {place for place in TROUBLE if place[0] < REFUSED}


@pytest.fixture
def trial(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Trial]:
    """A pipeline of the test's own on the shared servers."""
    made = Trial(kafka, zookeeper, tmp_path, topologies="tests.worlds.process_topologies")
    yield made
    made.end()


@pytest.mark.parametrize("kind", ["forking", "forking_in_a_thread", "forking_on_the_loop"])
def test_a_bolt_that_forks_is_refused_and_the_process_goes_on(trial: Trial, kind: str) -> None:
    """No child has the parent's clients, and nothing is left open; programs and spawns go on."""
    trial.publish(*COUNTS, trouble=TROUBLE)
    run = trial.start(kind)
    wanted = rows_of(place for place in places(*COUNTS) if place not in LETTERS)
    trial.wait_for(run, wanted.total())
    pipes = descriptors(run.pid, "pipe:")
    assert pipes < MOST_PIPES, f"{pipes} of {descriptors(run.pid)} descriptors are pipes"
    children = {pid for pid in run.descendants() if pid != run.pid}
    assert len(children) <= 1, "multiprocessing's tracker of resources is the only one"
    run.send(signal.SIGTERM)
    assert run.wait() == 0, run.tail()
    assert trial.rows() == wanted
    letters = trial.letters()
    assert {(int(each["partition"]), int(each["offset"])) for each in letters} == LETTERS
    assert len(letters) == len(LETTERS)
    assert all(each["reason"].startswith("fork refused: ") for each in letters)
    assert {each["error_class"] for each in letters} == {"ForkRefused"}
    assert trial.stored() == dict(enumerate(COUNTS))
    assert list(trial.folder.glob("rows-*")) == [trial.folder / f"rows-{run.pid}"]
    account = run.account()
    assert account["dead_lettered"] == len(LETTERS)
    assert account["unresolved"] == 0
