"""What a Delta table remembers of a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.spark.delta.versions import app_id, committed_of, pack, unpack
from topology.transactional import Committed

epochs = st.integers(0, 2**31 - 1)
txids = st.integers(0, 2**32 - 1)


@given(epochs, txids, epochs, txids)
def test_a_higher_epoch_wins_over_any_txid(e: int, t: int, f: int, u: int) -> None:
    assert unpack(pack(e, t)) == (e, t)
    assert (pack(e, t) < pack(f, u)) == ((e, t) < (f, u))
    assert 0 <= pack(e, t) < 2**63


@pytest.mark.parametrize(("epoch", "txid"), [(-1, 0), (0, -1), (2**31, 0), (0, 2**32)])
def test_what_has_no_room_is_refused(epoch: int, txid: int) -> None:
    with pytest.raises(ValueError, match=f"epoch {epoch}, txid {txid}"):
        pack(epoch, txid)


def test_a_line_without_a_version_has_nothing() -> None:
    apps = [app_id("p", "s", line) for line in ("a[0]", "a[1]")]
    assert apps[0] == "headrace/p/s/a[0]"
    found = committed_of(["a[0]", "a[1]"], apps, {apps[1]: pack(3, 9)})
    assert found == [Committed("a[0]", 0, 0), Committed("a[1]", 3, 9)]
