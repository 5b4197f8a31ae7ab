"""The pipeline's loop: the order in which it takes what other threads hand over, and emits."""

import pytest

from partition.consumer import Consumer
from tests.worlds.running import Works


@pytest.mark.parametrize(
    ("is_shared", "is_busy", "asked"), [(True, False, 1), (True, True, 2), (False, False, 2)]
)
def test_after_a_wait_a_replica_emits_nothing_before_it_is_known_what_is_its_own(
    monkeypatch, is_shared, is_busy, asked
):
    """Promise 9: a process that was frozen in the wait goes on there, and has lost its session."""
    with Works() as works:
        works.until(lambda: works.pipeline.outlets[0]._is_ready)  # what the sink reports first
        nexts, waits = [], []
        monkeypatch.setattr(Consumer, "is_shared", is_shared)
        monkeypatch.setattr(Consumer, "next", lambda _reader, now: nexts.append(now))
        monkeypatch.setattr(
            Consumer, "fetch", lambda _reader, _now, wait: waits.append(wait) or True
        )
        monkeypatch.setattr(works.pipeline, "_idle_seconds", lambda: 0.0 if is_busy else 0.02)
        assert works.pipeline.step()
    assert waits == [0.0 if is_busy else 0.02]
    assert len(nexts) == asked
