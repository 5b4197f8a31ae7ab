"""Several values of one record, and tuples of several records, in lanes."""

from collections.abc import Iterator

import pytest

from headrace import AdvancedBolt, Bolt, To, bolt
from headrace.sinks import MemorySink
from headrace.testing import topology_test
from tests.support.pipeline import Seen, drawn, payload


@pytest.mark.parametrize("kind", ["keyed", "tasks", "blocking"])
def test_generator_in_a_lane_emits_by_streams(kind):
    """Promise 4."""
    failing = [3]

    class Spread(Bolt):
        blocking = kind == "blocking"

        def process(self, value, /) -> Iterator:
            for n in range(value["n"]):
                if n == 2 and failing:
                    raise ValueError(failing.pop())
                yield To("odd", n) if n % 2 else n

    def draw(stream):
        options = {"tasks": 2} if kind == "tasks" else {}
        before = stream.keyed_by("n") if kind == "keyed" else stream
        spread = before.then(Spread, streams=("odd",), **options)
        spread.into(MemorySink("even"))
        spread["odd"].into(MemorySink("odd"))

    with topology_test(drawn(draw)) as kit:
        kit.send(payload(n=0), payload(n=3))
        assert (kit.rows, len(kit.acked), kit.retrying) == ([], 1, 1)
        kit.advance(60)
        assert (kit.rows_of("even"), kit.rows_of("odd")) == ([0, 2], [1])
        assert len(kit.acked) == 2


def test_failed_sibling_retries_the_whole_record():
    """Promise 4."""
    seen = Seen(failing=[(0, 1)])

    @bolt
    def spread(value) -> Iterator:
        for n in range(3):
            yield {"n": n}

    topology = drawn(
        lambda s: s.then(spread).keyed_by("n").then(seen.make, name="t").into(MemorySink("out"))
    )
    with topology_test(topology) as kit:
        kit.send(payload())
        assert kit.acked == []
        kit.advance(60)
        assert {row["n"] for row in kit.rows} == {0, 1, 2}
        assert (len(kit.acked), seen.calls[0].count(1)) == (1, 2)


def test_retried_record_in_a_pair_does_not_wait_for_itself():
    """It holds the key for which the pair wants to be called."""

    class Pairs(AdvancedBolt):
        tick_seconds = 3.0

        def __init__(self):
            self.kept = None

        def process(self, tuple_, collector, /):
            if self.kept is None:
                self.kept = tuple_
                return
            pair, self.kept = [self.kept, tuple_], None
            collector.emit({"n": [each.value["n"] for each in pair]}, anchors=pair)
            for each in pair:
                collector.ack(each)

        def tick(self, collector, /):
            if self.kept is not None:
                collector.emit({"n": [self.kept.value["n"]]}, anchors=self.kept)
                collector.ack(self.kept)
                self.kept = None

    failing = [ValueError("once")]

    @bolt
    async def once(value):
        if failing:
            raise failing.pop()
        return value

    topology = drawn(
        lambda s: (
            s.then(Pairs)
            .keyed_by(lambda value: value["n"][0])
            .then(once, workers=4)
            .into(MemorySink("out"))
        )
    )
    with topology_test(topology) as kit:
        kit.send(payload(n=1)).advance(3)
        assert kit.retrying == 1
        kit.advance(1).send(payload(n=2))
        assert kit.rows == [{"n": [1, 2]}]
        assert (len(kit.acked), kit.unresolved) == (2, 0)
