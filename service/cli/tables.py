"""`headrace tables`: the files that a topology's tables are made of, and joining the small ones.

A service may write the same tables meanwhile: a compaction is a commit of its own, which changes
no row and no transaction.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.cli.lines import describe, print_json
from service.cli.loading import configured, load_topology
from service.cli.render import RunProgress, answers
from service.errors import SinksFailed
from service.parts import Parts, wire
from topology.compaction import Compactable, Compaction
from topology.sink import Sink, innermost
from topology.steps import SinkStep
from topology.topology import Topology

Outcome: TypeAlias = Literal["compacted", "nothing_to_do", "has_no_files", "failed"]

_MIB = 1024 * 1024
_NOTHING = Compaction(0, 0, 0)
_WORDS: dict[Outcome, str] = {
    "compacted": "compacted",
    "nothing_to_do": "nothing to do",
    "has_no_files": "has no log of its files",
    "failed": "failed",
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One sink, and what became of its table's files."""

    sink: str
    kind: str  # the sink's class
    outcome: Outcome
    note: str = ""
    done: Compaction = _NOTHING
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        return {
            "kind": self.kind,
            "outcome": self.outcome,
            "note": self.note,
            **self.done._asdict(),
            "seconds": round(self.seconds, 3),
        }


def compact(
    target: str, config: Path | None, sinks: Sequence[str], target_mib: int, *, as_json: bool
) -> None:
    """Compact the tables of these sinks, or of all that can be, and print what was done.

    One that fails keeps no other from its turn. Raises SinksFailed then.
    """
    topology = load_topology(target)
    topology.validate()
    steps = chosen(topology, sinks)
    rows = []
    with _parts(topology, config) as parts, RunProgress(Console(stderr=True)) as progress:
        for number, step in enumerate(steps):
            progress.step(f"compacting {step.name}", number, len(steps))
            rows.append(_compacted(parts, step, target_mib * _MIB))
    if as_json:
        print_json({"sinks": {row.sink: row.as_json() for row in rows}})
    else:
        show_rows(answers(), rows)
    failed = [row.sink for row in rows if row.outcome == "failed"]
    if failed:
        raise SinksFailed("not compacted", failed)


def files(target: str, config: Path | None, sink: str, *, as_json: bool) -> None:
    """Print the files that a sink's table is made of now, a line each."""
    topology = load_topology(target)
    topology.validate()
    (step,) = chosen(topology, [sink])
    table = _compactable(step)
    if table is None:  # `chosen` has seen to that
        raise AssertionError(step.name)
    with _parts(topology, config) as parts, closing(innermost(step.sink)) as opened:
        opened.open(parts.context(step.name))
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
    steps = [step for step in topology.steps() if isinstance(step, SinkStep)]
    able = [step.name for step in steps if _compactable(step) is not None]
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
    for name in ("files", "MiB", "seconds"):
        table.add_column(name, justify="right")
    for row in rows:
        done = row.done
        figures = ["-"] * 3
        if row.outcome == "compacted":
            figures = [
                f"{done.files_replaced:,} to {done.files_written:,}",
                f"{done.bytes_written / _MIB:,.1f}",
                f"{row.seconds:,.1f}",
            ]
        table.add_row(escape(row.sink), _WORDS[row.outcome], *figures)
    console.print(table)
    for row in rows:
        if row.note:
            console.print(escape(f"{row.sink}: {row.note}"), soft_wrap=True, highlight=False)


def _compacted(parts: Parts, step: SinkStep, target_bytes: int) -> TableRow:
    table, kind = _compactable(step), _kind(step)
    if table is None:
        return TableRow(step.name, kind, "has_no_files")
    started = time.monotonic()
    try:
        with closing(innermost(step.sink)) as sink:
            sink.open(parts.context(step.name))
            done = table.compact(target_bytes)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other tables have their turn
        return TableRow(step.name, kind, "failed", describe(error))
    outcome: Outcome = "compacted" if done.files_replaced else "nothing_to_do"
    return TableRow(step.name, kind, outcome, "", done, time.monotonic() - started)


@contextmanager
def _parts(topology: Topology, config: Path | None) -> Iterator[Parts]:
    """The pipeline's parts, of which sinks may be opened; Spark, if they started it, is ended."""
    parts = wire(topology, configured(config))
    try:
        yield parts
    finally:
        if parts.spark is not None:
            parts.spark.close()


def _compactable(step: SinkStep) -> Compactable | None:
    sink: Sink[Any] = innermost(step.sink)
    return sink if isinstance(sink, Compactable) else None


def _kind(step: SinkStep) -> str:
    return type(innermost(step.sink)).__name__
