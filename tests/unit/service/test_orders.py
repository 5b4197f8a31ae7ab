"""Orders by the test kit: of a key and of a partition, through retries and tasks."""

import pytest

from headrace import bolt
from headrace.sinks import MemorySink
from headrace.testing import topology_test
from tests.support.pipeline import ORDERED_KINDS, Seen, drawn, payload


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_key_keeps_its_order_through_a_retry(kind):
    """Promise 13."""
    seen = Seen(failing=[(0, 1), (0, 1)])
    topology = drawn(
        lambda s: (
            s.keyed_by("user")
            .then(lambda: seen.make(kind), name="t", **({"workers": 4} if kind == "async" else {}))
            .into(MemorySink("out"))
        )
    )
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n, user=n % 2) for n in range(1, 9)])
        assert sorted(row["n"] for row in kit.rows) == [2, 4, 6, 8]
        assert (kit.retrying, kit.unresolved) == (1, 4)
        assert seen.calls[0].count(3) == 0, "it waits behind the record that comes again"
        kit.advance(120)
        rows = [row["n"] for row in kit.rows]
        assert [n for n in rows if n % 2] == [1, 3, 5, 7]
        assert [n for n in rows if not n % 2] == [2, 4, 6, 8]
        assert kit.unresolved == 0


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_key_has_one_task_and_keeps_its_order(kind):
    seen = Seen(failing=[(task, n) for task in range(3) for n in (0, 4)])
    topology = drawn(
        lambda s: (
            s.keyed_by("user")
            .then(lambda: seen.make(kind), name="t", tasks=3)
            .into(MemorySink("out"))
        )
    )
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n, user=f"u{n % 4}") for n in range(24)])
        kit.advance(600)
        assert sorted(row["n"] for row in kit.rows) == list(range(24))
        for user in range(4):
            mine = [row for row in kit.rows if row["n"] % 4 == user]
            assert [row["n"] for row in mine] == sorted(row["n"] for row in mine)
            assert len({row["task"] for row in mine}) == 1


def test_record_without_a_key_is_rejected_alone():
    topology = drawn(
        lambda s: s.keyed_by("user").then(bolt(lambda value: value), name="t").into(MemorySink("o"))
    )
    with topology_test(topology) as kit:
        kit.send(payload(n=1), payload(n=2, user=[]), payload(n=3, user="ann"))
        assert [(letter.step, letter.attempts) for letter in kit.rejected] == [("t", 1), ("t", 1)]
        assert [row["n"] for row in kit.rows] == [3]
