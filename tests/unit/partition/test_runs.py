import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partition.records import epoch_runs


def runs(epochs: list[int | None]) -> tuple[tuple[int, int], ...]:
    offsets = np.arange(100, 100 + 2 * len(epochs), 2)
    return epoch_runs(list(enumerate(epochs)), offsets, lambda message: message[1])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50).map(sorted))
def test_each_run_begins_where_the_epoch_changes(epochs: list[int]) -> None:
    expected = [
        (100 + 2 * at, epoch)
        for at, epoch in enumerate(epochs)
        if at == 0 or epochs[at - 1] != epoch
    ]
    assert runs(list(epochs)) == tuple(expected)
