"""`headrace tables`: the files that a topology's tables are made of, and their maintenance.

A service may write the same tables meanwhile: nothing here changes a row or a transaction.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from service import wiring
from service.cli import common as cli
from service.cli.run import RunProgress
from topology.sink import Compaction, Maintained, Maintenance, Removal, innermost
from topology.steps import SinkStep
from topology.topology import Topology

app = typer.Typer(
    help="The files of the tables that a topology writes, and their maintenance.",
    no_args_is_help=True,
)

Sinks = Annotated[
    list[str] | None,
    typer.Argument(metavar="SINK", help="Only these sinks, by the names of their steps."),
]
_MIB = 1024 * 1024


@app.command("compact")
def tables_compact(
    target: cli.Target,
    sinks: Sinks = None,
    config: cli.ConfigPath = None,
    *,
    target_mib: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="About how large the new files shall be, in MiB."),
    ] = 128,
    dry_run: cli.DryRun = False,
    as_json: cli.Json = False,
) -> None:
    """Join the small files of tables into large ones, also while a service writes them.

    No row changes, and no transaction. Sinks that have no table of files are passed over.
    """
    work = methodcaller("compact", target_mib * _MIB, dry_run=dry_run)
    job = _Job("compacting", "compacted", Compaction(0, 0, 0), work, dry_run)
    job.run(target, config, sinks, as_json=as_json)


@app.command("vacuum")
def tables_vacuum(
    target: cli.Target,
    sinks: Sinks = None,
    config: cli.ConfigPath = None,
    *,
    older_than_hours: Annotated[
        int, typer.Option(min=24, metavar="N", help="Remove no file that is younger, in hours.")
    ] = 168,
    dry_run: cli.DryRun = False,
    as_json: cli.Json = False,
) -> None:
    """Remove old files that tables do not name: replaced ones, and those of killed processes.

    A service may write the tables meanwhile.
    """
    work = methodcaller("vacuum", older_than_hours, dry_run=dry_run)
    job = _Job("vacuuming", "vacuumed", Removal(0, 0), work, dry_run)
    job.run(target, config, sinks, as_json=as_json)


@app.command("expire")
def tables_expire(
    target: cli.Target,
    sinks: Sinks = None,
    config: cli.ConfigPath = None,
    *,
    dry_run: cli.DryRun = False,
    as_json: cli.Json = False,
) -> None:
    """Remove old versions of tables: snapshots with their files (Iceberg), log entries (Delta).

    Each table's own properties say what is old. A service may write the tables meanwhile.
    """
    work = methodcaller("expire", dry_run=dry_run)
    job = _Job("expiring versions of", "expired", Removal(0, 0), work, dry_run)
    job.run(target, config, sinks, as_json=as_json)


@app.command("files")
def tables_files(
    target: cli.Target,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The name of the sink's step.")],
    config: cli.ConfigPath = None,
    *,
    as_json: cli.Json = False,
) -> None:
    """Print the files that a sink's table is made of now, one in a line."""
    topology = cli.load_topology(target)
    (step,) = chosen(topology, [sink])
    with _parts(topology, config) as parts, _opened(parts, step) as table:
        found = table.data_files()
    if as_json:
        cli.print_json({"sink": step.name, "files": found})
    else:
        sys.stdout.writelines(f"{each}\n" for each in found)


@dataclass(frozen=True, slots=True)
class TableRow:
    sink: str
    kind: str  # the sink's class
    outcome: str  # the verb's own, "dry_run", "nothing_to_do", "has_no_files" or "failed"
    result: Compaction | Removal
    note: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        said = {"kind": self.kind, "outcome": self.outcome, "note": self.note}
        return {**said, **self.result._asdict(), "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class _Job:
    """Maintenance of the tables of some sinks, or of all that have one."""

    doing: str
    done: str
    nothing: Compaction | Removal
    work: Callable[[Maintenance], Compaction | Removal]
    dry_run: bool

    def run(
        self, target: str, config: Path | None, sinks: Sequence[str] | None, *, as_json: bool
    ) -> None:
        """Do the work and print what became of each table. Raises ServiceError if one fails.

        One that fails keeps no other from its turn.
        """
        topology = cli.load_topology(target)
        steps = chosen(topology, sinks or [])
        rows = []
        with _parts(topology, config) as parts, RunProgress(Console(stderr=True)) as progress:
            for number, step in enumerate(steps):
                progress.step(f"{self.doing} {step.name}", number, len(steps))
                rows.append(self._maintain(parts, step))
        if as_json:
            cli.print_json({"sinks": {row.sink: row.as_json() for row in rows}})
        else:
            show_rows(cli.answers(), rows)
        failed = [row.sink for row in rows if row.outcome == "failed"]
        if failed:
            raise cli.sinks_failed(f"not {self.done}", failed)

    def _maintain(self, parts: wiring.Parts, step: SinkStep) -> TableRow:
        kind = _kind(step)
        if not _has_files(step):
            return TableRow(step.name, kind, "has_no_files", self.nothing)
        started = time.monotonic()
        try:
            with _opened(parts, step) as table:
                result = self.work(table)
        except Exception as error:  # noqa: BLE001 - the others have their turn
            return TableRow(step.name, kind, "failed", self.nothing, cli.describe(error))
        outcome = "dry_run" if self.dry_run else self.done
        outcome = "nothing_to_do" if result == self.nothing else outcome
        return TableRow(step.name, kind, outcome, result, "", time.monotonic() - started)


def chosen(topology: Topology, names: Sequence[str]) -> list[SinkStep]:
    """Return the named sinks in the topology's order; all of them if none is named.

    Raises typer.BadParameter, naming those that are allowed: there is no such sink, it has no
    files, or no sink of the topology has.
    """
    steps = topology.sink_steps()
    kinds = {step.name: _kind(step) for step in steps}
    able = [step.name for step in steps if _has_files(step)]
    if not able:
        found = ", ".join(f"'{name}' is of {kind}" for name, kind in kinds.items())
        message = f"no sink of topology '{topology.name}' has a log of its files: {found}"
        raise typer.BadParameter(message, param_hint="MODULE:TOPOLOGY")
    for name in names:
        if name not in able:
            found = f"topology '{topology.name}' has no sink '{name}'"
            if name in kinds:
                found = f"sink '{name}' ({kinds[name]}) has no log of its files"
            message = f"{found}, expected {', '.join(able)}"
            raise typer.BadParameter(message, param_hint="SINK")
    return [step for step in steps if not names or step.name in names]


def show_rows(console: Console, rows: Sequence[TableRow]) -> None:
    names = [
        ">" + name.replace("_", " ").replace("bytes", "MiB")
        for name in (*rows[0].result._fields, "seconds")
    ]
    shown = [
        (
            row.sink,
            row.outcome.replace("_", " "),
            *(
                f"{value / _MIB:,.1f}" if name.startswith("bytes") else f"{value:,}"
                for name, value in row.result._asdict().items()
            ),
            f"{row.seconds:,.1f}",
        )
        for row in rows
    ]
    console.print(cli.table_of(["sink", "what happened", *names], shown))
    cli.print_lines([f"{row.sink}: {row.note}" for row in rows if row.note], console)


@contextmanager
def _opened(parts: wiring.Parts, step: SinkStep) -> Iterator[Maintenance]:
    """Open a sink as a run would, for its table."""
    sink: Any = innermost(step.sink)
    with closing(sink):
        sink.open(parts.context(step.name))
        yield sink.maintenance()


@contextmanager
def _parts(topology: Topology, config: Path | None) -> Iterator[wiring.Parts]:
    """Wire the pipeline's parts, of which sinks may be opened.

    Spark starts when a table first asks for a procedure of Iceberg's, and is ended.
    """
    parts = wiring.wire(topology, cli.configured(config))
    with closing(wiring.spark_driver(parts.name, parts.config, ["iceberg"])) as spark:
        parts.spark = spark
        yield parts


def _has_files(step: SinkStep) -> bool:
    return isinstance(innermost(step.sink), Maintained)


def _kind(step: SinkStep) -> str:
    return type(innermost(step.sink)).__name__
