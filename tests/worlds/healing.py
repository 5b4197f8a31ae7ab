"""What the page about failures of Spark says is logged, held against what is."""

import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from sinks.spark.driver import SparkDriver

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/when-spark-fails.md"
_LINK = re.compile(r"\[(.*?)\]\(.*?\)")
_ROW = re.compile(r"^\| (.*?) \| (.*?) \| .*? \|$", re.MULTILINE)


@dataclass(frozen=True)
class Before:
    """What a driver had done before, and what is logged from then on."""

    restarts: int
    renewals: int
    logs: list[MutableMapping[str, Any]]


@contextmanager
def healing(event: str, driver: SparkDriver) -> Iterator[Before]:
    """Have the page's event happen to a running Spark; its lines are logged, and no others."""
    driver.open()
    with capture_logs() as logs:
        yield Before(driver.restarts, driver.renewals, logs)
    logged = [each["event"] for each in logs if each["event"].startswith("spark_")]
    expected = promised()[event]
    assert logged == expected, f"{event}: logged {logged}, the page says {expected}"


def promised() -> dict[str, list[str]]:
    """The lines of Spark's own, by event, in their order."""
    page = _LINK.sub(r"\1", PAGE.read_text(encoding="utf-8"))
    return {event: re.findall(r"`(\w+)`", lines) for event, lines in _ROW.findall(page)}
