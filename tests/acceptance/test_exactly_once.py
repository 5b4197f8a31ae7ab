"""kill -9 of Python and JVM at named places and at any moment: every row is there once.

Each process goes on where the one before it was killed. Sinks, kinds and crashes are drawn;
`make crash` takes all of them. CRASH_SEED draws the same again.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance import crashes
from tests.acceptance.crashes import FAILED_ONCE, GOOD, MOST_CRASHES, TOPOLOGIES, Case, Lake, Play
from tests.acceptance.every_crash import IN_LAKE
from tests.acceptance.stores import STORES
from tests.acceptance.trial import Trial
from tests.support.near_a_store import StoreProxy
from tests.support.seaweed import EmbeddedSeaweed
from tests.support.store_faults import weather
from topology.sink import Kind

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

MakePlay = Callable[..., Play]
NAMES = [*STORES]
CONTROLS = [name for name in NAMES if STORES[name].has_control]


@pytest.fixture
def make_play(
    request: pytest.FixtureRequest,
    kafka: EmbeddedKafka,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
) -> Iterator[MakePlay]:
    """`make_play(rows, others=None)`: a pipeline of the test's own on the shared servers."""
    trials: list[Trial] = []

    def make(rows: str, others: str | None = None, lake: Lake | None = None) -> Play:
        folder = tmp_path / f"play-{len(trials)}"
        folder.mkdir()
        trials.append(Trial(kafka, zookeeper, folder, topologies=TOPOLOGIES))
        needs_database = any(STORES[name].needs_database for name in (rows, others or rows))
        server = request.getfixturevalue("postgres") if needs_database else None
        play = Play(trials[-1], rows, others, server, lake=lake)
        play.publish()
        return play

    yield make
    for trial in trials:
        trial.end()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Each test's own draws, by a seed that is printed when it fails."""
    seed = os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6)
    print(f"CRASH_SEED={seed}")  # noqa: T201
    return random.Random(f"{seed} {request.node.name}")


def test_every_row_is_there_once_wherever_the_process_is_killed(
    make_play: MakePlay, rng: random.Random
) -> None:
    """Promise 14 and 16: kill -9 at any instant loses nothing, and repeats no row either.

    Before and after writes to ZooKeeper, before, inside and after a sink's commit, between two
    sinks' commits. Promise 2: the stored offset never moves back. Letters may repeat. Storm 45.
    """
    kind: Kind = rng.choice(["transactional", "opaque"])
    case = crashes.drawn(rng, NAMES, NAMES, kind, MOST_CRASHES)
    _does_no_harm(make_play, case)


def test_every_row_is_there_once_in_an_object_store_with_bad_weather(
    make_play: MakePlay, rng: random.Random, seaweed: EmbeddedSeaweed
) -> None:
    """Promise 14 and 16: three of a hundred requests fail, and the process is killed twice."""
    proxy = StoreProxy(seaweed.address)
    proxy.fault = weather(str(rng.random()), 0.03)
    with proxy.running():
        case = crashes.drawn(rng, IN_LAKE, IN_LAKE, "opaque", 2)
        _does_no_harm(make_play, case, Lake(seaweed, proxy))


def test_what_has_failed_once_does_not_fail_again(make_play: MakePlay) -> None:
    """Promise 16. It does nothing as long as nothing has failed."""
    for case in FAILED_ONCE:
        _does_no_harm(make_play, case)


def test_a_process_that_wakes_up_after_its_successor_began_commits_nothing(
    make_play: MakePlay, rng: random.Random
) -> None:
    """Promise 9: it stood still just before a commit, and others have gone on since."""
    store = rng.choice(NAMES)
    print(store)  # noqa: T201
    assert crashes.thawed(make_play(store)) == GOOD


@pytest.mark.parametrize("stores", [["delta"], CONTROLS], ids=["delta", "any"])
def test_a_sink_that_commits_its_rows_without_their_txid_repeats_some(
    make_play: MakePlay, rng: random.Random, stores: list[str]
) -> None:
    """The control: the same crash does harm where nothing prevents it."""
    store = rng.choice(stores)
    print(store)  # noqa: T201
    verdict = crashes.without_txid(make_play(store))
    assert verdict.duplicated > 0
    assert not verdict.lost, verdict


def _does_no_harm(make_play: MakePlay, case: Case, lake: Lake | None = None) -> None:
    print(case)  # noqa: T201
    play = make_play(case.rows, case.others, lake)
    with closing(crashes.crashed(play, case.kind, case.crashes)) as verdicts:
        for crash, verdict in verdicts:
            assert verdict == GOOD, crash
