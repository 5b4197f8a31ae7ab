"""Suite hot-path: which variant is held against which loop, and which of them have a goal."""

from types import SimpleNamespace

import pytest

from benchmarks import hot_path
from benchmarks.hot_path_variants import VARIANTS
from benchmarks.options import Options

RATES = {
    "raw": 1_000.0, "raw_json": 500.0, "raw_few": 1_250.0, "raw_json_few": 625.0,
    "noop": 950.0, "functions": 310.0, "vectorised": 490.0,
    "functions_flights": 250.0, "vectorised_flights": 400.0,
}  # fmt: skip


class FakeBench:
    """Gives figures that were not measured."""

    servers = SimpleNamespace(kafka=SimpleNamespace(address="nowhere"))

    def __init__(self, records: int | None = None) -> None:
        self.options = Options(records=records)
        self.profiled: list[str] = []

    def rounds(self, module, variants, topic, records, *, rounds, profile=()):
        self.profiled = list(profile)
        rest = {"cpu_us": 1.0, "early_mb": 1.0, "end_mb": 1.0}
        return {name: [{"per_second": RATES[name], **rest}] for name in variants}


def measured(monkeypatch):
    published = SimpleNamespace(total=336_776)
    monkeypatch.setattr(hot_path, "publish", lambda *_args, **_options: published)
    bench = FakeBench()
    return bench, hot_path.run(bench)


@pytest.mark.parametrize(
    ("records", "limit", "repeat"),
    [(None, 336_776, 6), (40_000, 40_000, 1), (336_776, 336_776, 1), (336_777, 336_776, 2)],
)
def test_all_flights_are_published_as_often_as_it_takes_or_no_more_than_are_asked_for(
    monkeypatch, records, limit, repeat
):
    asked = []

    def publish(_address, _topic, **options):
        asked.append((options["limit"], options["repeat"]))
        return SimpleNamespace(total=1)

    monkeypatch.setattr(hot_path, "publish", publish)
    hot_path.run(FakeBench(records))
    assert asked == [(limit, repeat)]


def test_every_variant_is_there_and_the_bare_loops_come_first():
    assert list(VARIANTS) == list(hot_path.VARIANTS) == list(RATES)


def test_each_variant_is_held_against_the_loop_that_does_as_much(monkeypatch):
    _bench, result = measured(monkeypatch)
    assert result.facts["ratio"] == {
        "noop": 0.95, "functions": 0.62, "vectorised": 0.98,
        "functions_flights": 0.5, "vectorised_flights": 0.8,
    }  # fmt: skip
    assert result.facts["ratio_few"]["noop"] == 0.76


def test_only_those_that_do_no_more_than_their_loop_have_a_goal_and_a_profile(monkeypatch):
    bench, result = measured(monkeypatch)
    assert [(goal.name, goal.limit, goal.is_met) for goal in result.goals] == [
        ("noop: rate", 0.9, True), ("functions: rate", 0.6, True), ("vectorised: rate", 1.0, False),
    ]  # fmt: skip
    assert bench.profiled == ["noop", "functions", "vectorised"]
    (table,) = result.tables
    assert ("functions_flights", "250", "1.00", "0.50 of raw_json (0.40)", "1", "1") in table.rows
