"""The spark engine under kill -9: rows that executors make are there once, as on the local engine.

`make crash` takes every place of every sink. CRASH_SEED draws the same again.
"""

import os
import random
from pathlib import Path

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance import crashes
from tests.acceptance.crashes import GOOD, TOPOLOGIES, Play
from tests.acceptance.stores import STORES
from tests.acceptance.trial import Trial
from topology.sink import Kind

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def test_every_row_is_there_once_wherever_a_driver_and_its_executors_are_killed(
    request: pytest.FixtureRequest,
    kafka: EmbeddedKafka,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
) -> None:
    """Promises 1, 2, 3, 14 and 16. At the end exit code 0 says that the account closes.

    Retries, letters, rows that do not fit: what comes of them is what the local engine's tests
    demand, too (wanted.py).
    """
    seed = os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6)
    print(f"CRASH_SEED={seed}")  # noqa: T201
    rng = random.Random(f"{seed} on executors")
    kind: Kind = rng.choice(["transactional", "opaque"])
    case = crashes.drawn(rng, STORES, STORES, kind, 1, "spark")
    print(case)  # noqa: T201
    needs_database = any(STORES[name].needs_database for name in (case.rows, case.others))
    server = request.getfixturevalue("postgres") if needs_database else None
    trial = Trial(kafka, zookeeper, tmp_path, topologies=TOPOLOGIES)
    try:
        play = Play(trial, case.rows, case.others, server, case.engine)
        play.publish()
        for crash, verdict in crashes.crashed(play, case.kind, case.crashes):
            assert verdict == GOOD, crash
    finally:
        trial.end()
