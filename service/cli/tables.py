"""`headrace tables`: the files that a topology's tables are made of, and their maintenance.

A service may write the same tables meanwhile: nothing here changes a row or a transaction.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.cli.common import answers, configured, describe, load_topology, print_json
from service.cli.render import RunProgress
from service.errors import SinksFailed
from service.wiring import Parts, spark_driver, wire
from topology.sink import Compaction, Maintained, Maintenance, Removal, innermost
from topology.steps import SinkStep
from topology.topology import Topology

Verb: TypeAlias = Literal["compact", "vacuum", "expire"]
Figures: TypeAlias = Compaction | Removal

_MIB = 1024 * 1024
_WORDS: dict[Verb, tuple[str, str, Figures]] = {
    "compact": ("compacting", "compacted", Compaction(0, 0, 0)),
    "vacuum": ("vacuuming", "vacuumed", Removal(0, 0)),
    "expire": ("expiring versions of", "expired", Removal(0, 0)),
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One sink, and what became of its table's files."""

    sink: str
    kind: str  # the sink's class
    outcome: str  # the verb's own, "dry_run", "nothing_to_do", "has_no_files" or "failed"
    figures: Figures
    note: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        return {
            "kind": self.kind,
            "outcome": self.outcome,
            "note": self.note,
            **self.figures._asdict(),
            "seconds": round(self.seconds, 3),
        }


def maintain(
    target: str,
    config: Path | None,
    sinks: Sequence[str],
    verb: Verb,
    work: Callable[[Maintenance], Figures],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Do some work on the tables of these sinks, or of all that have one, and print the figures.

    One that fails keeps no other from its turn. Raises SinksFailed then.
    """
    topology = load_topology(target)
    steps = chosen(topology, sinks)
    doing, done, nothing = _WORDS[verb]
    rows = []
    with _parts(topology, config) as parts, RunProgress(Console(stderr=True)) as progress:
        for number, step in enumerate(steps):
            progress.step(f"{doing} {step.name}", number, len(steps))
            rows.append(_maintained(parts, step, work, "dry_run" if dry_run else done, nothing))
    if as_json:
        print_json({"sinks": {row.sink: row.as_json() for row in rows}})
    else:
        show_rows(answers(), rows)
    failed = [row.sink for row in rows if row.outcome == "failed"]
    if failed:
        raise SinksFailed(f"not {done}", failed)


def files(target: str, config: Path | None, sink: str, *, as_json: bool) -> None:
    """Print the files that a sink's table is made of now, a line each."""
    topology = load_topology(target)
    (step,) = chosen(topology, [sink])
    with _parts(topology, config) as parts, _opened(parts, step) as table:
        found = table.data_files()
    if as_json:
        print_json({"sink": step.name, "files": found})
    else:
        sys.stdout.writelines(f"{each}\n" for each in found)


def chosen(topology: Topology, names: Sequence[str]) -> list[SinkStep]:
    """The sinks that are meant, in the topology's order; all of them if none is named.

    Raises typer.BadParameter, naming those that are allowed: there is no such sink, it has no
    files, or no sink of the topology has.
    """
    steps = topology.sink_steps()
    able = [step.name for step in steps if _has_files(step)]
    allowed = f"allowed: {', '.join(able) or 'none'}"
    if not able:
        kinds = ", ".join(f"'{step.name}' is of {_kind(step)}" for step in steps)
        message = f"no sink of topology '{topology.name}' has a log of its files: {kinds}"
        raise typer.BadParameter(message, param_hint="MODULE:TOPOLOGY")
    known = {step.name: step for step in steps}
    for name in names:
        if name not in known:
            message = f"topology '{topology.name}' has no sink '{name}'; {allowed}"
            raise typer.BadParameter(message, param_hint="SINK")
        if name not in able:
            message = f"sink '{name}' ({_kind(known[name])}) has no log of its files; {allowed}"
            raise typer.BadParameter(message, param_hint="SINK")
    return [step for step in steps if not names or step.name in names]


def show_rows(console: Console, rows: Sequence[TableRow]) -> None:
    """Print the rows as a table, and a line for each that needs more words."""
    table = Table()
    for name in ("sink", "what happened"):
        table.add_column(name)
    for name in (*rows[0].figures._fields, "seconds"):
        table.add_column(name.replace("_", " ").replace("bytes", "MiB"), justify="right")
    for row in rows:
        figures = [
            f"{value / _MIB:,.1f}" if name.startswith("bytes") else f"{value:,}"
            for name, value in row.figures._asdict().items()
        ]
        table.add_row(
            escape(row.sink), row.outcome.replace("_", " "), *figures, f"{row.seconds:,.1f}"
        )
    console.print(table)
    for row in rows:
        if row.note:
            console.print(escape(f"{row.sink}: {row.note}"), soft_wrap=True, highlight=False)


def _maintained(
    parts: Parts,
    step: SinkStep,
    work: Callable[[Maintenance], Figures],
    done: str,
    nothing: Figures,
) -> TableRow:
    kind = _kind(step)
    if not _has_files(step):
        return TableRow(step.name, kind, "has_no_files", nothing)
    started = time.monotonic()
    try:
        with _opened(parts, step) as table:
            figures = work(table)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other tables have their turn
        return TableRow(step.name, kind, "failed", nothing, describe(error))
    outcome = "nothing_to_do" if figures == nothing else done
    return TableRow(step.name, kind, outcome, figures, "", time.monotonic() - started)


@contextmanager
def _opened(parts: Parts, step: SinkStep) -> Iterator[Maintenance]:
    """A sink's table, with the sink opened as a run would open it."""
    sink: Any = innermost(step.sink)
    with closing(sink):
        sink.open(parts.context(step.name))
        yield sink.maintenance()


@contextmanager
def _parts(topology: Topology, config: Path | None) -> Iterator[Parts]:
    """The pipeline's parts, of which sinks may be opened.

    Spark starts when a table first asks for a procedure of Iceberg's, and is ended.
    """
    parts = wire(topology, configured(config))
    spark = parts.spark = spark_driver(parts.name, parts.config, ["iceberg"])
    try:
        yield parts
    finally:
        spark.close()


def _has_files(step: SinkStep) -> bool:
    return isinstance(innermost(step.sink), Maintained)


def _kind(step: SinkStep) -> str:
    return type(innermost(step.sink)).__name__
