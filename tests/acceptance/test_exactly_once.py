"""kill -9 of Python and JVM at named places and at any moment: every row is there once.

Each process goes on where the one before it was killed. Sinks, kinds and crashes are drawn;
`make crash` takes all of them. CRASH_SEED draws the same again.
"""

import os
import random
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.acceptance.stores import STORES
from tests.faults import sink_crashes
from tests.faults.judge import GOOD
from tests.faults.servers import Lake, Servers
from tests.faults.sink_crashes import FAILED_ONCE, IN_LAKE, MOST_CRASHES, Case
from tests.support.near_a_store import StoreProxy
from tests.support.seaweed import EmbeddedSeaweed
from tests.support.store_faults import weather
from topology.sink import Kind

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]
nightly = pytest.mark.nightly

NAMES = [*STORES]
CONTROLS = [name for name in NAMES if STORES[name].has_control]


@pytest.fixture
def servers(request, kafka, zookeeper, rng, tmp_path):
    """The shared servers; three of a hundred requests to the object store fail."""
    with ExitStack() as stack:

        def lake() -> Lake:
            store: EmbeddedSeaweed = request.getfixturevalue("seaweed")
            proxy = stack.enter_context(StoreProxy(store.address).running())
            proxy.fault = weather(str(rng.random()), 0.03)
            return Lake(store, proxy)

        yield Servers(
            kafka,
            zookeeper,
            tmp_path,
            postgres=lambda: request.getfixturevalue("postgres"),
            lake=lake,
        )


@pytest.fixture
def rng(request):
    seed = os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6)
    print(f"CRASH_SEED={seed}")  # noqa: T201
    return random.Random(f"{seed} {request.node.name}")


@pytest.mark.parametrize(
    ("engine", "crashes"),
    [
        ("local", 2),
        pytest.param("local", MOST_CRASHES, marks=nightly),
        pytest.param("spark", 1, marks=nightly),
    ],
)
def test_every_row_exists_once_wherever_the_process_is_killed(servers, rng, engine, crashes):
    """Promises 1, 2, 3, 14 and 16: kill -9 at any instant loses nothing, and repeats no row either.

    Before and after writes to ZooKeeper, before, inside and after a sink's commit, between two
    sinks' commits. Letters may repeat. Storm 45.
    """
    kind: Kind = rng.choice(["transactional", "opaque"])
    _does_no_harm(sink_crashes.drawn(rng, NAMES, NAMES, kind, crashes, engine), servers)


def test_every_row_is_there_once_in_a_failing_object_store(servers, rng):
    """Promise 14 and 16: three of a hundred requests fail, and the process is killed twice."""
    case = sink_crashes.drawn(rng, IN_LAKE, IN_LAKE, "opaque", 2)
    _does_no_harm(replace(case, on_s3=True), servers)


def test_cases_that_failed_once_pass(servers):
    """Promise 16. It does nothing as long as nothing has failed."""
    for case in FAILED_ONCE:
        _does_no_harm(case, servers)


@nightly
def test_zombie_commits_nothing_after_its_successor_began(servers, rng):
    """Promise 9: it stood still just before a commit, and others have gone on since."""
    case = sink_crashes.of_sink(rng.choice(NAMES))
    print(case)  # noqa: T201
    assert sink_crashes.play(case, servers, sink_crashes.thawed) == GOOD


@pytest.mark.parametrize(
    "stores", [["delta"], pytest.param(CONTROLS, marks=nightly)], ids=["delta", "any"]
)
def test_sink_without_txids_repeats_rows(servers, rng, stores):
    """The control: the same crash does harm where nothing prevents it."""
    case = sink_crashes.of_sink(rng.choice(stores))
    print(case)  # noqa: T201
    assert sink_crashes.play(case, servers, sink_crashes.control) == GOOD


def _does_no_harm(case: Case, servers: Servers) -> None:
    print(case)  # noqa: T201
    assert sink_crashes.play(case, servers) == GOOD
