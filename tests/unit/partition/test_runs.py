import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partition.records import epoch_runs


def runs(epochs: list[int | None]) -> tuple[tuple[int, int], ...]:
    offsets = np.arange(100, 100 + 2 * len(epochs), 2)
    return epoch_runs(list(enumerate(epochs)), offsets, lambda message: message[1])


def test_a_run_under_one_leader_asks_two_messages() -> None:
    asked = []

    def epoch(message: int) -> int:
        asked.append(message)
        return 7

    assert epoch_runs(list(range(1000)), np.arange(1000), epoch) == ((0, 7),)
    assert asked == [0, 999]


def test_unknown_epochs_give_nothing() -> None:
    assert runs([None, None]) == ()
    assert runs([None, 3]) == ()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50).map(sorted))
def test_each_run_begins_where_the_epoch_changes(epochs: list[int]) -> None:
    expected = [
        (100 + 2 * at, epoch)
        for at, epoch in enumerate(epochs)
        if at == 0 or epochs[at - 1] != epoch
    ]
    assert runs(list(epochs)) == tuple(expected)
