"""The report: a page of Markdown with a part per suite, each written anew when it is measured."""

import os
import platform
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Self

import confluent_kafka

from benchmarks.result import Result

_PACKAGES = ("confluent-kafka", "numpy", "pyarrow", "orjson", "msgspec", "uvloop")


_CPUS = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Conditions:
    """When and on what. `load_per_core` is the load average of the minute before it."""

    date: str
    cores: int
    processor: str
    python: str
    versions: dict[str, str]
    load_per_core: float

    @classmethod
    def now(cls) -> Self:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        versions = {name: version(name) for name in _PACKAGES}
        versions["librdkafka"] = confluent_kafka.libversion()[0]
        return cls(
            date=datetime.now(UTC).date().isoformat(),
            cores=cores or 1,
            processor=_processor(),
            python=platform.python_version(),
            versions=versions,
            load_per_core=os.getloadavg()[0] / (cores or 1),
        )

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{self.date}; {self.cores} cores ({self.processor}), shared with the servers; "
            f"load per core before: {self.load_per_core:.2f}; Python {self.python}, {packages}."
        )


def _processor() -> str:
    lines = _CPUS.read_text(encoding="utf-8").splitlines() if _CPUS.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


_BLOCK = r"(<!-- suite: {suite} -->\n).*?(<!-- end -->)"


def written_into(page: str, result: Result, conditions: Conditions) -> str:
    """The page with the suite's part replaced. Raises KeyError if it has no place for it.

    The place is between `<!-- suite: NAME -->` and `<!-- end -->`.
    """
    block = re.compile(_BLOCK.format(suite=re.escape(result.suite)), re.DOTALL)
    if not block.search(page):
        raise KeyError(f"the report has no line '<!-- suite: {result.suite} -->'")
    parts = [str(conditions), ""]
    for table in result.all_tables:
        parts += [*table.markdown(), ""]
    text = "\n".join(parts)
    return block.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page)
