from collections import Counter

import pytest

from headrace import To, all_tasks, bolt, custom, direct, fields, global_, shuffle
from headrace.sinks import MemorySink
from headrace.testing import topology_test
from tests.support.pipeline import KINDS, Seen, drawn, parse, payload, piped


def grouped(grouping, make, tasks=3):
    return piped(make, first=parse, name="t", tasks=tasks, grouping=grouping)


@pytest.mark.parametrize("kind", KINDS)
def test_record_waits_for_its_copies_in_all_tasks(kind):
    """Promise 4: one copy that fails brings all of them again."""
    seen = Seen(failing=[(1, 7)])
    with topology_test(grouped(all_tasks(), lambda: seen.make(kind))) as kit:
        kit.send(payload(n=7), payload(n=8))
        assert [record.offset for record in kit.acked] == [1]
        assert kit.retrying == 1
        kit.advance(60)
        assert [record.offset for record in kit.acked] == [1, 0]
        assert all(Counter(seen.calls[task]) == {7: 2, 8: 1} for task in range(3))
        rows = Counter((row["task"], row["n"]) for row in kit.rows)
        assert all(rows[task, 8] == 1 and rows[task, 7] >= 1 for task in range(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("grouping", "tasks"),
    [
        (shuffle(), [0, 1, 2, 0, 1, 2]),
        (global_(), [0] * 6),
        (custom(lambda value, count: value["n"] // 2 % count), [0, 0, 1, 1, 2, 2]),
        (fields("user"), None),
    ],
    ids=["shuffle", "global", "custom", "fields"],
)
def test_grouping_selects_the_task(kind, grouping, tasks):
    seen = Seen()
    with topology_test(grouped(grouping, lambda: seen.make(kind))) as kit:
        for n in range(6):
            kit.send(payload(n=n, user=n % 2))
        assert len(kit.acked) == 6
        found = {row["n"]: row["task"] for row in kit.rows}
        if tasks is None:
            assert len({found[n] for n in (0, 2, 4)}) == len({found[n] for n in (1, 3, 5)}) == 1
        else:
            assert [found[n] for n in range(6)] == tasks


@pytest.mark.parametrize("kind", KINDS)
def test_direct_stream_reaches_the_named_task(kind):
    seen = Seen()

    @bolt
    def choose(value):
        return To("chosen", value, task=value["to"])

    def draw(stream):
        chosen = stream.then(choose, streams=("chosen",))
        chosen.into(MemorySink("rest"))
        chosen["chosen"].then(lambda: seen.make(kind), name="t", tasks=2, grouping=direct()).into(
            MemorySink("out")
        )

    with topology_test(drawn(draw)) as kit:
        wrong = [5, -1, "1", 1.0, None]
        kit.send(payload(n=1, to=1), payload(n=2, to=0), *(payload(n=3, to=to) for to in wrong))
        assert seen.calls == {1: [1], 0: [2]}
        assert {letter.reason for letter in kit.rejected} == {
            *(f"task of bolt 't': found {to!r}, expected 0 to 1" for to in wrong[:-1]),
            "bolt 'choose' named no task in its direct stream 'chosen'",
        }
        assert len(kit.acked) == 2


def test_value_sent_to_no_task_is_rejected():
    """Promise 3: it is not filtered, as nobody said that it may be."""
    seen = Seen()
    with topology_test(grouped(custom(lambda value, count: ()), seen.make, tasks=2)) as kit:
        kit.send(payload(n=1))
        (letter,) = kit.rejected
        assert letter.step == "t"
        assert letter.reason == "tasks of the grouping: found [], expected some of 0 to 1"
        assert dict(seen.calls) == {}
