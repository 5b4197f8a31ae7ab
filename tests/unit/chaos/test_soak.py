"""Whether memory is flat is told by medians, and only of enough samples."""

import pytest

from tests.chaos.soak import MOST_GROWTH, Soak


def soak(*memory: float) -> Soak:
    made = Soak(replicas=None, seconds=0.0)  # type: ignore[arg-type]  # no process is asked
    made.memory = list(memory)
    return made


def test_the_last_third_is_held_against_the_third_before() -> None:
    assert soak(*[50.0] * 20, *[100.0] * 20, *[103.0] * 20).growth == pytest.approx(1.03)
    assert soak(*[50.0] * 20, *[100.0] * 20, *[106.0] * 20).growth > MOST_GROWTH


def test_one_odd_sample_changes_nothing() -> None:
    assert soak(*[100.0] * 39, 900.0, *[100.0] * 20).growth == 1.0


def test_of_too_few_samples_nothing_is_said() -> None:
    assert soak(*[100.0] * 10, *[200.0] * 5).growth == 0.0
