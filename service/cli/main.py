"""The `headrace` command: its groups of subcommands, and errors as one line and an exit code."""

import os
import sys
import traceback
from typing import Annotated

import typer

from partition.errors import KafkaMisconfigured, StoreHostsUnknown
from service.cli import check, control, dead_letters, import_storm, offsets, run, status, tables
from service.cli.common import describe, is_ours
from service.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE, BadConfig, NoTopology, ServiceError
from service.observability.logs import stderr
from topology.errors import InvalidTopology
from topology.masking import escaped

DEBUG_VARIABLE = "HEADRACE_DEBUG"

app = typer.Typer(
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
for each in (run.run_app, check.check_app, status.status_app, control.control_app):
    app.add_typer(each)  # without a name: its commands stand at the top
offsets.offsets_app.command("import-storm")(import_storm.offsets_import_storm)
app.add_typer(offsets.offsets_app, name="offsets")
app.add_typer(dead_letters.dead_letters_app, name="dead-letters")
app.add_typer(tables.tables_app, name="tables")
app.add_typer(run.dev_app, name="dev")


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


def main() -> int:
    """Run the command line; return its exit code. HEADRACE_DEBUG=1 shows tracebacks."""
    try:
        app(prog_name="headrace")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except ServiceError as error:
        return _report(error, error.exit_code)
    except InvalidTopology as error:
        return _report(error, EXIT_USAGE)
    except (KafkaMisconfigured, StoreHostsUnknown) as error:
        return _report(error, EXIT_CONFIG)
    except Exception as error:  # noqa: BLE001 - whatever it is, a user reads one line
        return _report(error, EXIT_FAILED)
    finally:
        _flush()
    return 0


def _report(error: Exception, code: int) -> int:
    hint = ""
    if os.environ.get(DEBUG_VARIABLE):
        stderr.write(escaped("".join(traceback.format_exception(error)), keeping="\n"))
    elif not is_ours(error) or (isinstance(error, NoTopology) and error.__cause__):
        hint = f"; {DEBUG_VARIABLE}=1 shows the traceback"
    others = error.others if isinstance(error, BadConfig) else ()
    for each in (error, *others):
        stderr.write(f"headrace: {describe(each)}{hint}\n")
    return code


def _flush() -> None:
    """Write what is buffered; a reader that has gone away is no error of the command."""
    stderr.drain()
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
