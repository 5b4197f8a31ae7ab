"""The `headrace` command: its groups of subcommands, and errors as one line and an exit code."""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

DEBUG_VARIABLE = "HEADRACE_DEBUG"

# By name: the module, with its `app` if that has another name, and the first paragraph of its help.
COMMANDS = {
    "init": ("init", "Make a project: a pipeline with its test, configuration and image."),
    "run": ("run", "Run a topology. Drains on SIGTERM or Ctrl-C, and prints a run summary."),
    "check": ("check", "Check the configuration and every dependency: one OK or FAIL line each."),
    "graph": ("check", "Print the topology as text and as a Mermaid chart."),
    "status": ("status", "Show the replicas, who owns which partition, and what is committed."),
    "pause": ("control", "Have all replicas finish and commit what they began, and begin no more."),
    "resume": ("control", "Have paused replicas go on."),
    "drain": ("control", "Have one replica hand its partitions over, and give it none."),
    "rebalance": ("control", "Have the partitions shared out anew, whoever has them now."),
    "offsets": ("import_storm", "Move committed offsets, or import those of a Storm topology."),
    "dead-letters": ("dead_letters", "Records that failed: see why, replay them, or drop them."),
    "tables": ("tables", "The files of the tables that a topology writes, and their maintenance."),
    "dev": (
        "run:dev_app",
        "Kafka, ZooKeeper for development; they need headrace\\[spark] and Java.",
    ),
}


class Modules(Mapping[str, Any]):
    """The commands by name; the module of each is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        module, _, app = COMMANDS[name][0].partition(":")
        group = get_group(getattr(import_module(f"service.cli.{module}"), app or "app"))
        group.name = name
        return group.commands.get(name, group)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Commands(TyperGroup):
    """All commands; `headrace --help` imports the modules of none."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = Modules()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.commands = {
            name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()
        }
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=Commands,
    help="""Reads Kafka, runs Python bolts, writes tables, and accounts for every record.

    A first run, with Kafka and ZooKeeper brought along:
    [bold]headrace run my_package.flow:topology --embedded[/]
    """,
    epilog="""Exit codes: 0 done, 1 failed, 2 wrong usage or topology, 78 bad configuration.
    Facts go to standard output; logs and errors go to standard error.
    HEADRACE_DEBUG=1 shows the traceback of an error.""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"headrace {version('headrace')}\n")
        raise typer.Exit


@app.callback()
def headrace(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options before the subcommand."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code. HEADRACE_DEBUG=1 shows tracebacks.

    `words` stand for those of `sys.argv`.
    """
    try:
        app(words, prog_name="headrace")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except Exception as error:  # noqa: BLE001 - whatever it is, a user reads one line
        return _report(error)
    finally:
        _flush()
    return 0


def _report(error: Exception) -> int:
    from service.cli.common import describe, exit_code_of, is_ours
    from service.errors import BadConfig, NoTopology
    from service.observability.logs import stderr
    from topology.masking import escaped

    hint = ""
    if os.environ.get(DEBUG_VARIABLE):
        stderr.write(escaped("".join(traceback.format_exception(error)), keeping="\n"))
    elif not is_ours(error) or (isinstance(error, NoTopology) and error.__cause__):
        hint = f"; {DEBUG_VARIABLE}=1 shows the traceback"
    others = error.others if isinstance(error, BadConfig) else ()
    for each in (error, *others):
        stderr.write(f"headrace: {describe(each)}{hint}\n")
    return exit_code_of(error)


def _flush() -> None:
    """Write what is buffered; a reader that has gone away is no error of the command."""
    logs = sys.modules.get("service.observability.logs")
    if logs is not None:  # else nothing was logged
        logs.stderr.drain()
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
