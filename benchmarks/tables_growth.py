"""Suite tables-growth: commits into large tables, many writers at once, a process's memory."""

import contextlib
import random
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from benchmarks import measured, orders_topologies
from benchmarks.bench import TIMEOUT_SECONDS, Bench
from benchmarks.child import Figures, Job
from benchmarks.measured import running, tree
from benchmarks.order_table import NAME, PRICED, first_visible
from benchmarks.orders import Orders
from benchmarks.orders_topologies import GROWTH_TOPIC
from benchmarks.place import delta_files
from benchmarks.result import Goal, Result, spread, table
from benchmarks.tables import staged
from headrace.sinks import DeltaSink
from sinks.storage import Storage
from sinks.tables.files import DataFile, FileStager
from tests.support.without import without
from topology.errors import SinkBusy
from topology.sink import Fence, SinkContext, Staged

COMMIT_ROWS = 1_000
WRITERS = 16
_ADDS = 10_000  # files that one entry of a grown table's log names
_POLL_SECONDS = 0.02
RECORDS = 2_000_000
ROUNDS = 3
COMMITS = 40
SECONDS = 20
MODULE = "benchmarks.tables_growth"
MOST_MS = {100: 20.0, 10_000: 35.0, 100_000: 150.0}  # by files of the table
BOUNDED = "_bounded"
MOST_P99_MS = 1_000.0
LEAST_PER_SECOND = 14.0
MOST_MB = 350.0
MOST_FIRST_SECONDS = 3.0
COLUMNS = {
    "median": "{median:,.1f}", "lowest": "{spread[0]:,.1f}", "highest": "{spread[1]:,.1f}",
}  # fmt: skip


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    quick = bench.options.records is not None
    found: dict[str, list[float]] = {}

    def measure(variant: str, records: int, suffix: str = "", **options: float) -> None:
        figures = bench.run(MODULE, variant, GROWTH_TOPIC, records, options=options)
        for key, value in figures.items():
            if key not in ("records", "rows"):
                found.setdefault(f"{key}{suffix}", []).append(value)

    bench.publish(GROWTH_TOPIC, Orders().value, records)
    sizes = [min(files, records) for files in MOST_MS]
    for turn in range(rounds):
        bench.progress.step(f"round {turn + 1}", turn, rounds)
        for files in sizes:
            measure("commits", 4 if quick else COMMITS, f"_{files}", files=files)
        measure("commits_bounded", 4 if quick else COMMITS, f"_{sizes[1]}{BOUNDED}", files=sizes[1])
        measure("writers", WRITERS * (3 if quick else SECONDS))
        measure("pipeline", records)
    each = {
        name: {"median": statistics.median(of), "spread": spread(of)} for name, of in found.items()
    }
    median = {name: of["median"] for name, of in each.items()}
    commit = {name[10:]: value for name, value in median.items() if name.startswith("commit_ms_")}
    others = {name: value for name, value in median.items() if not name.startswith("commit_ms_")}
    limits = zip(sizes, MOST_MS.items(), strict=True)
    at_most = {
        **{f"commit at {files:,} files, ms": (commit[str(n)], most) for n, (files, most) in limits},
        "writers: p99, ms": (median["p99_ms"], MOST_P99_MS),
        "pipeline: MB": (median["peak_mb"], MOST_MB),
        "pipeline: first row, s": (median["first_row_seconds"], MOST_FIRST_SECONDS),
    }
    return Result(
        "tables-growth",
        {
            "records": records,
            "rounds": rounds,
            "commit_ms": {name: round(value, 1) for name, value in commit.items()},
            **{name: round(value, 3) for name, value in others.items()},
            "spread": {name: of["spread"] for name, of in each.items()},
        },
        [
            table(
                f"medians of {rounds} rounds",
                {f"`{name}`": of for name, of in each.items()},
                COLUMNS,
            )
        ],
        [
            Goal("writers: commits a second", median["commits_per_second"], LEAST_PER_SECOND),
            *(Goal(name, value, most, at_most=True) for name, (value, most) in at_most.items()),
        ],
    )


_LINE = f"{NAME}[0]"
_ONLY_ROWS = f'{{"numRecords":{COMMIT_ROWS}}}'


def commits(job: Job, *, bounded: bool = False) -> Figures:
    """As many commits as there are records, into a table that has many files already.

    Of these, only the log knows. It has the number of their rows, or with `bounded` also the
    bounds of all columns.
    """
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        _grow(Storage(folder), int(job.options["files"]), bounded=bounded)
        sink = _opened(folder, _LINE)
        taken = [
            _committed(sink, staged(sink, _LINE, txid, _rows(txid)))
            for txid in range(1, job.records + 1)
        ]
        sink.close()
    return {"records": job.records, "commit_ms": float(np.median(taken)) * 1e3}


def _grow(storage: Storage, files: int, *, bounded: bool) -> None:
    uri = storage.uri(NAME)
    (file,) = FileStager(storage, uri).write(pa.table(_rows(0)), 0)
    table = DeltaTable.create(uri, PRICED)
    for first in range(0, files, _ADDS):
        numbers = range(first, min(files, first + _ADDS))
        stats = file.statistics.as_delta_json() if bounded else _ONLY_ROWS
        adds: list[AddAction | RemoveAction] = [
            _add(file, f"part-{number:08d}.parquet", stats) for number in numbers
        ]
        table.create_write_transaction(adds, "append", table.schema())
        table.update_incremental()
    table.create_checkpoint()
    # A sink that opens looks for the files of the last entry.
    table.create_write_transaction([_add(file, file.path, _ONLY_ROWS)], "append", table.schema())


def _add(file: DataFile, path: str, stats: str) -> AddAction:
    return AddAction(path, file.num_bytes, {}, file.modified_ms, data_change=True, stats=stats)


def _rows(number: int) -> pa.RecordBatch:
    columns = {
        field.name: [str(number) if pa.types.is_string(field.type) else number] * COMMIT_ROWS
        for field in PRICED
    }
    return pa.RecordBatch.from_pydict(columns, schema=PRICED)


def _opened(warehouse: str, line: str) -> DeltaSink[Any]:
    sink: DeltaSink[Any] = DeltaSink(NAME, schema=PRICED)
    sink.open(SinkContext("growth", NAME, {}, Storage(warehouse), None, exactly_once=True))
    sink.fence([Fence(line, 1)])
    return sink


def _committed(sink: DeltaSink[Any], ready: Staged) -> float:
    """Commit, again while the sink is busy, as the service does; how many seconds it took."""
    began = time.perf_counter()
    while True:
        try:
            sink.commit(ready)
        except SinkBusy as busy:
            time.sleep(busy.after_seconds)
        else:
            return time.perf_counter() - began


def writers(job: Job) -> Figures:
    """Processes that each commit once a second, so many times as there are records for each."""
    each = job.records // WRITERS
    context = get_context("spawn")  # delta-rs does not survive fork()
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        ready, told = context.Barrier(WRITERS), context.SimpleQueue()
        given = [(folder, number, each, ready, told) for number in range(WRITERS)]
        racers = [context.Process(target=_race, args=args, daemon=True) for args in given]
        for racer in racers:
            racer.start()
        found = [told.get() for _ in racers]
        for racer in racers:
            racer.join()
        files = delta_files(Storage(folder), f"{folder}/{NAME}")
        numbers = [
            pq.read_table(path, columns=["order_id"])["order_id"].to_numpy() for path in files
        ]
    # Each has committed once before it was measured.
    expected = Counter(dict.fromkeys(range(WRITERS * (each + 1)), COMMIT_ROWS))
    if Counter(np.concatenate(numbers).tolist()) != expected:
        raise SystemExit(f"of {WRITERS * (each + 1)} commits some are lost, or there twice")
    taken_ms = np.concatenate([seconds for _, _, seconds in found]) * 1e3
    lasted = max(end for _, end, _ in found) - min(start for start, _, _ in found)
    return {
        "records": job.records,
        "commits_per_second": WRITERS * each / lasted,
        "p50_ms": float(np.percentile(taken_ms, 50)),
        "p99_ms": float(np.percentile(taken_ms, 99)),
    }


def _race(folder: str, number: int, last: int, ready: Any, told: Any) -> None:
    """One of the processes. Each has a moment of the second of its own, as services have."""
    line = f"{NAME}[{number}]"
    sink = _opened(folder, line)
    first = number * (last + 1)
    _committed(sink, staged(sink, line, 1, _rows(first)))  # imports what a commit needs
    ready.wait()
    time.sleep(random.random())  # noqa: S311 - no secret
    start = time.monotonic()
    taken = []
    for turn in range(1, last + 1):
        time.sleep(max(0.0, start + turn - 1 - time.monotonic()))
        taken.append(_committed(sink, staged(sink, line, turn + 1, _rows(first + turn))))
    told.put((start, time.monotonic(), taken))


def pipeline(job: Job) -> Figures:
    """`headrace run` with the default configuration, from its start until all is committed.

    The memory is the most that the process has had, which is the only one. As in the images, there
    is no pandas, which only examples need: where pyarrow finds it, it imports it.
    """
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        config = Path(folder, "headrace.toml")
        config.write_text(
            f'[kafka]\n"bootstrap.servers" = "{job.kafka}"\n'
            f'[zookeeper]\nhosts = "{job.zookeeper}"\n'
            f'[pipeline]\nname = "{job.pipeline}"\n[storage]\nwarehouse = "{folder}"\n'
        )
        python, environment = without(Path(folder, "packages"), "pandas")
        command = [*python, "-m", "headrace", "run", f"{orders_topologies.MODULE}:growing"]
        began_ms = time.time() * 1e3
        ends = time.monotonic() + TIMEOUT_SECONDS
        peak_mb, processes = 0.0, 1
        with subprocess.Popen(
            [*command, "--config", str(config), "--until-caught-up"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            while process.poll() is None and time.monotonic() < ends:
                with contextlib.suppress(OSError, StopIteration):  # it has just ended
                    peak_mb = max(peak_mb, measured.peak_mb(process.pid))
                processes = max(processes, len(tree(running(), process.pid)))
                time.sleep(_POLL_SECONDS)
            process.kill()
            if process.returncode:
                said = process.stderr.read().decode() if process.stderr else ""
                raise SystemExit(f"headrace run ended with {process.returncode}: {said}")
        lasted = time.monotonic() - (ends - TIMEOUT_SECONDS)
        if processes > 1:
            raise SystemExit(f"headrace run has started other processes: {processes - 1}")
        first_ms = first_visible(Path(folder, NAME))
        rows = sum(
            pq.read_metadata(path).num_rows
            for path in delta_files(Storage(folder), f"{folder}/{NAME}")
        )
    return {
        "records": job.records,
        "rows": rows,
        "whole_seconds": lasted,
        "peak_mb": peak_mb,
        "first_row_seconds": (first_ms - began_ms) / 1e3,
    }


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "commits": commits,
    "commits_bounded": partial(commits, bounded=True),
    "writers": writers,
    "pipeline": pipeline,
}
