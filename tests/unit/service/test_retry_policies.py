"""What decides whether a record is tried again, whatever the kind of the bolt."""

import pytest

from headrace import Reject, Retry, To, bolt
from headrace.sinks import MemorySink
from headrace.testing import RetryPolicy, topology_test
from tests.support.pipeline import KINDS, Seen, drawn, payload


def test_failing_step_decides_on_the_retries():
    """Promise 13: a policy of the step goes before the pipeline's."""

    @bolt
    def never(value):
        raise ValueError("never")

    @bolt
    async def nor_this(value):
        raise ValueError("never")

    def draw(stream):
        own = stream.then(bolt(lambda v: To("async", v) if v["n"] else v), name="sort",
                          streams=("async",))  # fmt: skip
        own.then(never, retries=RetryPolicy(limit=0)).into(MemorySink("a"))
        own["async"].then(nor_this, retries=RetryPolicy(limit=3, jitter=0)).into(MemorySink("b"))
        stream.then(bolt(lambda value: value), name="rest").into(MemorySink("c"))

    with topology_test(drawn(draw), retries=RetryPolicy(limit=1, jitter=0)) as kit:
        kit.send(payload(n=0), payload(n=1))
        kit.advance(600)
        found = {letter.record.offset: (letter.step, letter.attempts) for letter in kit.rejected}
        assert found == {0: ("never", 1), 1: ("nor_this", 4)}


def test_retry_and_reject_override_the_policy():
    @bolt
    async def sort(value):
        if value["n"] == 0:
            raise Reject("no")
        if value["n"] == 1:
            raise Retry("later", after_seconds=77)
        return value

    topology = drawn(lambda s: s.keyed_by("n").then(sort, workers=4).into(MemorySink("out")))
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n) for n in range(3)])
        assert [letter.reason for letter in kit.rejected] == ["no"]
        kit.advance(76)
        assert len([e for e in kit.history(1) if e.what == "retried"]) == 0
        kit.advance(2)
        assert [e.seconds for e in kit.history(1) if e.what == "retried"] == [77.0]


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_once_never_retries(kind):
    seen = Seen(failing=[(0, 1)])
    topology = drawn(
        lambda s: s.then(lambda: seen.make(kind), name="t", retries=RetryPolicy(limit=5)).into(
            MemorySink("out")
        ),
        reliability="at-most-once",
    )
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n) for n in range(3)])
        kit.advance(60)
        assert sorted(seen.calls[0]) == [0, 1, 2]
        assert sorted(row["n"] for row in kit.rows) == [0, 2]
        assert [letter.attempts for letter in kit.rejected] == [1]
        assert kit.unresolved == 0
