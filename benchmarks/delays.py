"""How long it took until an order could be read in a Delta table: from its making to the commit.

A row can be read once the entry of the table's log is there that names its file. The entry's own
modification time says when that was; the order itself says when it was made. Both are of the
same machine's clock.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq

from benchmarks.job import Figures
from benchmarks.orders import FIRST_ORDER

_MOST = 99


def first_visible(table: Path) -> float:
    """The millisecond since 1970 at which the first rows could be read."""
    entries = sorted((table / "_delta_log").glob("*.json"))
    return next(
        entry.stat().st_mtime_ns / 1e6
        for entry in entries
        if '"add":' in entry.read_text(encoding="utf-8")
    )


def delays(table: Path, *, since: int) -> Figures:
    """Percentiles in milliseconds over the orders from number `since` on, and the commits."""
    found: list[Any] = []
    commits = 0
    for entry in sorted((table / "_delta_log").glob("*.json")):
        visible_at = entry.stat().st_mtime_ns / 1e6
        actions = map(json.loads, entry.read_text(encoding="utf-8").splitlines())
        files = [unquote(action["add"]["path"]) for action in actions if "add" in action]
        commits += bool(files)
        for name in files:
            rows = pq.ParquetFile(table / name).read(columns=["order_id", "ts"])
            counted = rows["order_id"].to_numpy() >= FIRST_ORDER + since
            found.append(visible_at - rows["ts"].to_numpy()[counted])
    if not any(map(len, found)):
        raise SystemExit(f"no order from number {since} on is in {table}")
    each = np.concatenate(found)
    return {
        "p50_ms": float(np.percentile(each, 50)),
        "p99_ms": float(np.percentile(each, _MOST)),
        "most_ms": float(each.max()),
        "commits": commits,
    }
