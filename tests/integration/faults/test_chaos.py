"""Row R04 of the fault matrix: three of five replicas come and go every half second at most."""

import random

import pytest

from tests.faults.chaos import played
from tests.faults.servers import started

pytestmark = pytest.mark.faults

SECONDS = 60.0


@pytest.mark.parametrize("output", ["messages", "lines"])
def test_flapping_replicas_lose_nothing(output):
    """Promises 2, 9 and 16: exactly once is exact, and what is stored never moves back."""
    seed = str(random.SystemRandom().randrange(10**6))
    with started() as servers:
        outcome = played(servers, output, seed, SECONDS)
    print(f"CHAOS_SEED={seed} {outcome.figures}")  # noqa: T201
    assert outcome.is_good, f"seed {seed}: {outcome}"
