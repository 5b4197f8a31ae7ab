"""A few cases of the crash matrix, others every day; `make faults` plays all of them.

FAULTS_SEED draws the same again.
"""

import os
import random
from datetime import UTC, datetime

import pytest

from tests.faults.crash import ACTIONS, crash_cases, play
from tests.faults.servers import Servers

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

SEED = os.environ.get("FAULTS_SEED") or f"{datetime.now(UTC):%Y-%m-%d}"


def sample(seed: str) -> list[str]:
    rng = random.Random(seed)
    cases = [*crash_cases().values()]
    points = rng.sample(sorted({each.point for each in cases}), len(ACTIONS))
    return [
        rng.choice([each.id for each in cases if (each.point, each.action) == (point, action)])
        for point, action in zip(points, ACTIONS, strict=True)
    ]


@pytest.fixture
def servers(kafka, zookeeper, tmp_path):
    return Servers(kafka, zookeeper, tmp_path)


def test_crash_points_of_the_day_lose_nothing(servers):
    """Promise 16: three cases of the day. At least once, no row repeats but in the window.

    Promise 2: no stored offset moves back. Promise 3: each refused record has its letter.
    """
    print(f"FAULTS_SEED={SEED}")  # noqa: T201
    _go_as_promised(sample(SEED), servers)


def _go_as_promised(names: "list[str] | tuple[str, ...]", servers: Servers) -> None:
    for name in names:
        outcome = play(crash_cases()[name], SEED, servers)
        print(name, outcome)  # noqa: T201
        assert outcome.is_good, f"{name}: {'; '.join(outcome.said)}"
