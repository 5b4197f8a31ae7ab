"""Try it: three days of requests to a web site, through a Kafka of its own.

python -m examples.iceberg [--state-dir DIR]
"""

import json
import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from examples.iceberg.pipeline import topology
from examples.running import Message, Outcome, Surroundings, arguments, run_example

REQUESTS = 6_000
FROM = datetime(2026, 3, 1, tzinfo=UTC)
PAGES = ("/", "/prices", "/prices?campaign=spring", "/about", "/jobs?from=news&campaign=mail")
AGENTS = ("Firefox", "Safari", "Chrome", "SearchBot/2.1")


def main() -> int:
    """Run it, and return the exit code."""
    options = arguments("iceberg", __doc__).parse_args()
    return run_example("iceberg", options.state_dir, _run)


def requests() -> Iterator[Message]:
    """The same requests in each run, by visitor; one in a thousand has no address of a page."""
    rng = random.Random(1)  # noqa: S311 - it only has to look like a web site
    for number in range(REQUESTS):
        visitor = f"visitor-{rng.randrange(300)}"
        request = {
            "at": FROM + timedelta(minutes=number * 0.7),
            "visitor": visitor,
            "url": f"https://example.org{rng.choice(PAGES)}",
            "agent": rng.choice(AGENTS),
            "status": rng.choice([200] * 9 + [404]),
        }
        if number % 1_000 == 500:  # noqa: PLR2004 - one in a thousand
            request |= {"url": "https://[example.org", "agent": "Firefox", "status": 200}
        yield visitor, orjson.dumps(request)


def newest_snapshot(warehouse: Path) -> dict[str, Any]:
    """Read the newest snapshot from the table's own metadata, which the catalogue names."""
    with closing(sqlite3.connect(warehouse / "iceberg.db")) as catalogue:
        query = "select metadata_location from iceberg_tables where table_name = 'page_views'"
        (place,) = catalogue.execute(query).fetchone()
    metadata = json.loads(Path(urlsplit(place).path).read_text(encoding="utf-8"))
    newest = metadata["current-snapshot-id"]
    return next(each for each in metadata["snapshots"] if each["snapshot-id"] == newest)


def _run(here: Surroundings) -> Outcome:
    here.publish("requests", requests())
    account = here.run(topology)
    summary = newest_snapshot(here.warehouse)["summary"]
    rows = int(summary["total-records"])
    gaps = []
    if rows != account.rows:
        gaps.append(f"the account has {account.rows} rows, the table {rows}")
    shown = [f"{rows} page views in {summary['total-data-files']} files"]
    return Outcome(account, gaps, shown)


if __name__ == "__main__":
    sys.exit(main())
