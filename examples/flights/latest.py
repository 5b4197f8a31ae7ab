"""The airports where flights come in latest: asked of Spark SQL, and counted from the source."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from examples.flights import tables
from sinks.spark.driver import SparkDriver

SHOWN = 5
LATE_MINUTES = 15
_QUERY = f"""
SELECT * FROM (
  SELECT IF(kind = 'arrival', airport, other_airport) AS airport,
         COUNT(IF(kind = 'arrival', delay_minutes, NULL)) AS arrivals,
         SUM(IF(kind = 'arrival', delay_minutes, 0)) AS minutes,
         COUNT_IF(kind = 'departure') AS departures,
         COUNT_IF(kind = 'departure' AND delay_minutes > {LATE_MINUTES}) AS late
  FROM delta.`{{table}}`
  GROUP BY 1)
WHERE arrivals > 0
ORDER BY minutes / arrivals DESC, airport
LIMIT {SHOWN}
"""  # noqa: S608 - of our own names


class Airport(NamedTuple):
    """The delays of the flights to an airport."""

    code: str
    arrivals: int  # with a known delay
    minutes: int  # of delay, all together
    departures: int  # to here
    late: int  # of these

    @property
    def mean_delay(self) -> float:
        """In minutes, of the arrivals."""
        return self.minutes / self.arrivals


def by_spark(spark: SparkDriver, table: Path) -> list[Airport]:
    """The worst airports, by Spark SQL over the table."""

    def job(session: Any) -> list[Airport]:
        return [Airport(*row) for row in session.sql(_QUERY.format(table=table)).collect()]

    return spark.run(job, group="query")


def by_hand(limit: int | None) -> list[Airport]:
    """The same from the flights that were published, in plain Python."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    columns = ["dest", "dep_time", "dep_delay", "arr_time", "arr_delay"]
    for flight in tables.flights().select(columns).slice(0, limit).to_pylist():
        count = counts[flight["dest"]]
        if flight["dep_time"] is None:  # cancelled
            continue
        count[2] += 1
        count[3] += (flight["dep_delay"] or 0) > LATE_MINUTES
        if flight["arr_time"] is not None and flight["arr_delay"] is not None:
            count[0] += 1
            count[1] += flight["arr_delay"]
    airports = [Airport(code, *count) for code, count in counts.items() if count[0]]
    return sorted(airports, key=lambda each: (-each.mean_delay, each.code))[:SHOWN]


def lines(airports: Sequence[Airport]) -> Iterator[str]:
    """A small table, for people."""
    names = tables.airports()
    yield f"{'to':<4} {'airport':<32} {'arrivals':>8} {'mean delay':>12} {'left late':>9}"
    for each in airports:
        name = names[each.code].name if each.code in names else ""
        share = each.late / each.departures
        yield (
            f"{each.code:<4} {name:<32.32} {each.arrivals:>8} "
            f"{each.mean_delay:>8.1f} min {share:>9.1%}"
        )
