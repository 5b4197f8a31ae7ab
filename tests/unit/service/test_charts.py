import re
from dataclasses import replace

import pytest

from headrace.testing import topology_test
from partition.latency import CommitLatency, UncommittedChunk
from service.observability import charts
from tests.support.charts import drawn
from tests.support.service import snapshot, topology


def latency(records, waited, age=0.0):
    chunk = UncommittedChunk(0, records, 0.0, (age, age))
    return CommitLatency().with_chunk(chunk, waited)


@pytest.fixture(scope="module")
def first():
    with topology_test(topology()) as test:
        yield snapshot(test, now=100.0)


class Run:
    """A history of snapshots, one each quarter of a second, as a service publishes them."""

    def __init__(self, first):
        self.history = charts.History()
        self.snapshot = first
        self.history.add(first)

    def go_on(self, seconds, written=0, dead_lettered=0, latencies=None):
        """Go on at a steady pace; `latencies` are those since the start."""
        for _ in range(int(seconds * 4)):
            now = self.snapshot
            self.snapshot = replace(
                now,
                taken_at=now.taken_at + 0.25,
                written=now.written + written,
                dead_lettered=now.dead_lettered + dead_lettered,
                latencies=now.latencies if latencies is None else latencies,
            )
            self.history.add(self.snapshot)


@pytest.fixture
def run(first):
    return Run(first)


def test_sample_every_five_seconds_has_the_rates_since_the_last(run):
    run.go_on(4.75, written=100)
    assert run.history.samples == ()
    run.go_on(5.25, written=100, dead_lettered=1)
    one, two = run.history.samples
    assert (one["at"], two["at"]) == (105.0, 110.0)
    assert (one["resolved_per_second"], two["resolved_per_second"]) == (400.2, 404.0)
    assert (one["dead_letters_per_second"], two["dead_letters_per_second"]) == (0.2, 4.0)
    assert (one["read_per_second"], one["lag"]) == (0.0, 0)


def test_samples_are_bounded(run):
    run.go_on(2 * charts.WINDOW_SECONDS)
    assert len(run.history.samples) == charts.MOST_SAMPLES
    assert run.history.samples[-1]["at"] - run.history.samples[0]["at"] == charts.WINDOW_SECONDS - 5


def test_latency_of_a_sample_is_that_of_its_own_records(run):
    slow = latency(100, waited=50.0)
    run.go_on(5, latencies={"orders": slow})
    both = {"orders": slow, "returns": latency(10, waited=0.3, age=100.0)}
    run.go_on(5, latencies=both)
    run.go_on(5)
    one, two, three = run.history.samples
    assert 30 < one["processing_median_seconds"] <= 60
    assert 0.25 < two["processing_p99_seconds"] <= 0.5
    assert 60 < two["end_to_end_median_seconds"] <= 300
    assert three["processing_median_seconds"] is None  # nothing was committed
    assert 30 < run.history.latency["processing_median_seconds"] <= 60
    assert run.history.latency["end_to_end_p99_seconds"] > 60


def test_latency_forgets_what_is_older_than_15_minutes(run):
    run.go_on(5, latencies={"orders": latency(100, waited=50.0)})
    run.go_on(charts.WINDOW_SECONDS - 5)
    assert run.history.latency["processing_median_seconds"] is not None
    run.go_on(5)
    assert run.history.latency["processing_median_seconds"] is None


def test_charts_show_the_samples(run):
    for turn in range(120):  # of 20 minutes: rates that vary, latencies with gaps
        known = run.snapshot.latencies.get("orders", CommitLatency())
        chunk = UncommittedChunk(0, turn % 3 * 10, 0.0, (turn % 7, turn % 5))
        latencies = {"orders": known.with_chunk(chunk, turn / 100)}
        run.go_on(10, written=turn * 37 % 100, dead_lettered=turn % 2, latencies=latencies)
    varied = run.history.samples
    now = varied[-1]["at"] + 3.0
    shown = drawn(charts.charts_html(varied, now))
    assert shown.now == now
    for chart in charts.CHARTS:
        figures = [each[key] for key in chart.lines.values() for each in varied[1:]]
        top = max(figure for figure in figures if figure is not None) or 1.0
        for key, line in zip(chart.lines.values(), shown.lines[chart.id], strict=True):
            points = [(now - each["at"], each[key]) for each in varied if each[key] is not None]
            wanted = [(ago, figure / top) for ago, figure in points]
            inside = [(ago, share) for ago, share in wanted if ago <= charts.WINDOW_SECONDS]
            assert len(line) == len(inside) > 50
            for (ago, share), (drawn_ago, drawn_share) in zip(inside, line, strict=True):
                assert drawn_ago == pytest.approx(ago, abs=0.16)  # a twentieth of a 300th
                assert drawn_share == pytest.approx(share, abs=0.05 / 60 + 1e-9)
    assert shown.begins["processing"] > 10  # nothing is drawn where nothing was committed
    assert shown.begins["lag"] == 1


def test_chart_says_its_newest_lowest_and_highest_figure(run):
    run.go_on(5, written=1000)
    run.go_on(5, written=500, latencies={"orders": latency(100, waited=0.2, age=2.0)})
    run.go_on(5, written=800)
    text = drawn(charts.charts_html(run.history.samples, 120.0)).text
    assert text["resolved"] == (
        "Records resolved 3,200/s Records resolved newest 3,200/s; minimum 2,000/s, "
        "maximum 4,000/s min 2,000/s, max 4,000/s"
    )
    assert "175 ms median 248 ms p99" in text["processing"]  # the last that is known
    assert "newest 2.0 s median, 2.5 s p99; minimum 2.0 s, maximum 2.5 s" in text["end_to_end"]


def test_charts_of_a_short_run_span_at_least_a_minute(run):
    empty = charts.charts_html((), 100.0)
    assert "<h2>Last 1 min</h2>" in empty
    assert "newest -; minimum -, maximum -" in empty
    run.go_on(10, written=10)
    (line,) = drawn(charts.charts_html(run.history.samples, 112.0)).lines["resolved"]
    assert [ago for ago, _ in line] == pytest.approx([7.0, 2.0], abs=0.02)
    run.go_on(290)
    assert "<h2>Last 5 min</h2>" in charts.charts_html(run.history.samples, 401.0)


def test_charts_name_what_they_are_to_a_screen_reader():
    page = charts.charts_html((), 100.0)
    assert page.count('role="img"') == len(charts.CHARTS)
    ids = re.findall(r'id="(\w+-(?:title|desc))"', page)
    assert re.findall(r'aria-\w+by="([\w-]+)"', page) == ids
    assert len(set(ids)) == 2 * len(charts.CHARTS)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4 ms"), (0.35, "350 ms"), (4.2, "4.2 s"), (42, "42 s"), (725, "12 min"),
     (12_300, "3.4 h")],
)  # fmt: skip
def test_durations_have_two_or_three_digits(seconds, text):
    assert charts.duration_text(seconds) == text
