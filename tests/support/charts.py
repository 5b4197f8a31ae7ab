"""The figures that the status page's charts show, read back from what is drawn."""

import re
from typing import NamedTuple

_CHART = re.compile(r'<figure data-chart="(\w+)">(.*?)</figure>', re.DOTALL)
_POINT = re.compile(r"([ML])([\d.-]+) ([\d.-]+)")
_SIZE = re.compile(r'viewBox="0 0 (\d+) (\d+)"')


class Drawn(NamedTuple):
    """Charts: of each its text and its lines, as (seconds ago, share of the highest figure)."""

    now: float
    text: dict[str, str]
    lines: dict[str, list[list[tuple[float, float]]]]
    begins: dict[str, int]  # how many pieces the first line has


def drawn(page: str) -> Drawn:
    (now, seconds) = re.search(r'data-now="([\d.]+)" data-seconds="([\d.]+)"', page).groups()
    text, lines, begins = {}, {}, {}
    for name, figure in _CHART.findall(page):
        width, height = map(int, _SIZE.search(figure).groups())
        paths = re.findall(r'<path d="([^"]*)"', figure)
        lines[name] = [
            [
                (float(seconds) * (1 - float(x) / width), 1 - float(y) / height)
                for _, x, y in _POINT.findall(path)
            ]
            for path in paths
        ]
        begins[name] = paths[0].count("M")
        text[name] = " ".join(re.sub(r"<[^>]*>|&ensp;|\u2002", " ", figure).split())
    return Drawn(float(now), text, lines, begins)
