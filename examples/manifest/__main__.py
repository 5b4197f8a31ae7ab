"""Try it: two days of readings from a hundred stations, through a Kafka of its own.

python -m examples.manifest [--state-dir DIR]
"""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import orjson
import pyarrow.parquet as pq

from examples.manifest.pipeline import BROKEN_CELSIUS, topology
from examples.running import Message, Outcome, Surroundings, arguments, run_example
from headrace.sinks import manifest_files

FROM_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
HOURS = 48
STATIONS = 100
BROKEN = 7  # the number of the station whose sensor does not work
SILENT = 13  # the number of the one that sends no time


def main() -> int:
    """Run it, and return the exit code."""
    options = arguments("manifest", __doc__).parse_args()
    return run_example("manifest", options.state_dir, _run)


def sent() -> Iterator[Message]:
    """The same readings in each run, hour by hour."""
    for hour in range(HOURS):
        for number in range(STATIONS):
            name = f"station-{number}"
            celsius = BROKEN_CELSIUS if number == BROKEN else number / 10 - hour % 24
            reading = {"station": name, "at_ms": FROM_MS + hour * 3_600_000, "celsius": celsius}
            if number == SILENT:
                del reading["at_ms"]
            yield name, orjson.dumps(reading)


def _run(here: Surroundings) -> Outcome:
    here.publish("stations", sent())
    account = here.run(topology)
    files = manifest_files(here.warehouse / "readings")
    rows: Counter[str] = Counter()
    for file in files:  # a file's folder names its day; the column is not in the file
        day = next(part for part in file.split("/") if part.startswith("day=")).removeprefix("day=")
        celsius = pq.ParquetFile(file).read(["celsius"])["celsius"]
        rows[day] += len(celsius)
    gaps = []
    if rows.total() != account.rows:
        gaps.append(f"the account has {account.rows} rows, the files {rows.total()}")
    shown = [f"{day}: {count} readings" for day, count in sorted(rows.items())]
    return Outcome(account, gaps, [*shown, f"{len(files)} files"])


if __name__ == "__main__":
    sys.exit(main())
