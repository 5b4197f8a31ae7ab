"""The last 15 minutes: a sample of the figures every five seconds, and charts of them in SVG."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from partition.latency import CommitLatency, Latencies
from service.observability.snapshot import Snapshot

EVERY_SECONDS = 5.0
MOST_SAMPLES = 180
WINDOW_SECONDS = EVERY_SECONDS * MOST_SAMPLES
WIDTH, HEIGHT = 300, 60  # of a drawing, in its own units: the page stretches it

Figures: TypeAlias = Mapping[str, float | None]  # by name; None: there was nothing to measure
_LEAST_SECONDS = 60.0
_WHOLE_FROM = 10  # a rate below is shown with a decimal
_QUANTILES = {"median": 0.5, "p99": 0.99}


class History:
    """Samples of the last 15 minutes. The owner thread adds; any thread reads."""

    def __init__(self) -> None:
        self.samples: tuple[Figures, ...] = ()  # the oldest first
        self.latency: Figures = {}  # of all of them together
        self._newest: Snapshot | None = None  # of those sampled
        self._totals = deque([CommitLatency()], MOST_SAMPLES + 1)  # since the start, by sample

    def add(self, snapshot: Snapshot) -> None:
        """Take a sample, if it is time: rates are those since the last one."""
        before = self._newest = self._newest or snapshot
        seconds = snapshot.taken_at - before.taken_at
        if seconds < EVERY_SECONDS:
            return
        self._newest = snapshot
        by_topic = zip(*snapshot.latencies.values(), strict=True)
        total = CommitLatency(*(sum(each, Latencies()) for each in by_topic))

        def rate(count: Callable[[Snapshot], int]) -> float:
            return round((count(snapshot) - count(before)) / seconds, 3)

        sample: Figures = {
            "at": snapshot.taken_at,
            "read_per_second": rate(lambda s: s.read),
            "resolved_per_second": rate(lambda s: s.written + s.filtered + s.dead_lettered),
            "dead_letters_per_second": rate(lambda s: s.dead_lettered),
            "lag": sum(part.lag for part in snapshot.partitions),
            **_latency_figures(total, self._totals[-1]),
        }
        self.samples = (*self.samples, sample)[-MOST_SAMPLES:]
        self._totals.append(total)
        self.latency = _latency_figures(total, self._totals[0])


def _latency_figures(latency: CommitLatency, earlier: CommitLatency) -> Figures:
    return {
        f"{name}_{word}_seconds": None if found is None else round(found, 4)
        for name, until, since in zip(latency._fields, latency, earlier, strict=True)
        for word, share in _QUANTILES.items()
        for found in [(until - since).quantile(share)]
    }


class Chart(NamedTuple):
    """A chart of one or two lines: for each its name, and what a sample calls its figures."""

    id: str
    title: str
    unit: str
    lines: Mapping[str, str]


_LATENCIES = {
    "end_to_end": "Latency, Kafka's time stamp to commit",
    "processing": "Latency, fetch to commit",
}
CHARTS = (
    Chart("read", "Records read", "/s", {"": "read_per_second"}),
    Chart("resolved", "Records resolved", "/s", {"": "resolved_per_second"}),
    Chart("lag", "Lag", "", {"": "lag"}),
    *(
        Chart(name, title, "s", {word: f"{name}_{word}_seconds" for word in _QUANTILES})
        for name, title in _LATENCIES.items()
    ),
    Chart("dead_letters", "Dead letters", "/s", {"": "dead_letters_per_second"}),
)


def charts_html(samples: Sequence[Figures], now: float) -> str:
    """Draw all charts, of at least a minute; only figures and words of this module are in them."""
    ages = [now - (each["at"] or 0.0) for each in samples]
    seconds = min(max([_LEAST_SECONDS, *ages]), WINDOW_SECONDS)
    drawn = [(WIDTH * (1 - age / seconds), each) for age, each in zip(ages, samples, strict=True)]
    shown = [(x, each) for x, each in drawn if x >= 0]
    figures = "\n".join(_figure(chart, shown) for chart in CHARTS)
    return (
        f'<section id="charts" data-now="{now:.3f}" data-seconds="{seconds:.3f}">\n'
        f"<h2>Last {duration_text(seconds)}</h2>\n<div>\n{figures}\n</div>\n</section>"
    )


def _figure(chart: Chart, shown: Sequence[tuple[float, Figures]]) -> str:
    lines = [(name, [(x, each[key]) for x, each in shown]) for name, key in chart.lines.items()]
    known = [figure for _, points in lines for _, figure in points if figure is not None]
    top = max(known, default=0.0) or 1.0
    low, high = (_text(pick(known, default=None), chart.unit) for pick in (min, max))
    newest = [
        (name, _text(next((y for _, y in reversed(points) if y is not None), None), chart.unit))
        for name, points in lines
    ]
    colours = [f'<span class="swatch {each}"></span>' for each in ("flight", "fetched")]
    values = " &ensp;".join(
        f"{colour if len(lines) > 1 else ''}<b>{text}</b> {name}"
        for colour, (name, text) in zip(colours, newest, strict=False)
    )
    said = ", ".join(f"{text} {name}".strip() for name, text in newest)
    paths = "\n".join(f'<path d="{"".join(_path(points, top))}"/>' for _, points in lines)
    return f"""<figure data-chart="{chart.id}">
<figcaption>{chart.title}<br>{values}</figcaption>
<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img"
 aria-labelledby="{chart.id}-title" aria-describedby="{chart.id}-desc">
<title id="{chart.id}-title">{chart.title}</title>
<desc id="{chart.id}-desc">newest {said}; minimum {low}, maximum {high}</desc>
{paths}
</svg>
<p>min {low}, max {high}</p>
</figure>"""


def _path(points: Iterable[tuple[float, float | None]], top: float) -> Iterator[str]:
    """Draw a line with gaps; one begins with a dash, which is all of a point between two gaps."""
    pen = "M"
    for x, figure in points:
        if figure is None:
            pen = "M"
        else:
            yield f"{pen}{x:.1f} {HEIGHT * (1 - figure / top):.1f}{'h-2h2' if pen == 'M' else ''}"
            pen = "L"


def _text(figure: float | None, unit: str) -> str:
    if figure is None:
        return "-"
    if unit == "s":
        return duration_text(figure)
    return f"{figure:,.{0 if figure >= _WHOLE_FROM else 1}f}".removesuffix(".0") + unit


def duration_text(seconds: float) -> str:
    """Write a duration as the page's script does: 350 ms, 4.2 s, 42 s, 12 min, 3.4 h."""
    for limit, factor, unit, digits in (
        (1.0, 1000, "ms", 0), (10.0, 1, "s", 1), (60.0, 1, "s", 0), (3600.0, 1 / 60, "min", 0),
    ):  # fmt: skip
        if seconds < limit:
            return f"{seconds * factor:.{digits}f} {unit}"
    return f"{seconds / 3600:.1f} h"
