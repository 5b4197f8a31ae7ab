"""Every subcommand of `headrace`: its words and its options.

What they do is in the modules beside this one.

The imports inside the functions keep `headrace --help` quick.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.common import ConfigPath, Json, Target
from service.cli.import_storm import offsets_import_storm
from service.cli.letters_app import letters_app
from service.cli.offsets import offsets_app
from service.cli.replicas import replicas_app
from service.cli.transactions import transactions_app

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
tables_app = typer.Typer(
    help="The files of the tables that a topology writes, and their maintenance.",
    no_args_is_help=True,
)
dev_app = typer.Typer(
    help="Kafka and ZooKeeper for development; they need headrace\\[spark] and Java.",
    no_args_is_help=True,
)
app.add_typer(replicas_app)  # without a name: its commands are ours
offsets_app.command("import-storm")(offsets_import_storm)
app.add_typer(offsets_app, name="offsets")
app.add_typer(letters_app, name="dead-letters")
app.add_typer(tables_app, name="tables")
app.add_typer(transactions_app, name="transactions")
app.add_typer(dev_app, name="dev")

StateDir = Annotated[
    Path, typer.Option(metavar="DIR", help="Where the embedded servers keep their data.")
]
Sinks = Annotated[
    list[str] | None,
    typer.Argument(metavar="SINK", help="Only these sinks, by the names of their steps."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
_STATE = Path(".headrace")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - see above

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
    """Take what stands before the subcommand."""


@app.command()
def run(
    target: Target,
    config: ConfigPath = None,
    *,
    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up", help="End when all that was there at the start is resolved."
        ),
    ] = False,
    engine: Annotated[
        Literal["local", "spark"] | None,
        typer.Option(help="What processes the records, instead of the configuration's engine."),
    ] = None,
    with_servers: Annotated[
        bool,
        typer.Option(
            "--embedded",
            help="Bring Kafka and ZooKeeper along (headrace\\[spark], Java); needs no --config.",
        ),
    ] = False,
    state_dir: StateDir = _STATE,
    as_json: Json = False,
) -> None:
    """Run a topology until it has caught up, or until SIGTERM or Ctrl-C drains it.

    The account at the end says where every record is.
    """
    from service.cli import commands  # noqa: PLC0415 - see above

    commands.run(
        target,
        config,
        engine=engine,
        until_caught_up=until_caught_up,
        state_dir=state_dir if with_servers else None,
        as_json=as_json,
    )


@app.command()
def check(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Check the configuration and every dependency: one OK or FAIL line each.

    Sinks are opened as a run would open them, so empty tables and topics may be created.
    """
    from service.cli import commands  # noqa: PLC0415 - see above

    commands.check(target, config, as_json=as_json)


@app.command()
def graph(
    target: Target,
    *,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print only the chart.")] = False,
    as_json: Json = False,
) -> None:
    """Print the topology as text and as a Mermaid chart."""
    from service.cli import commands  # noqa: PLC0415 - see above

    commands.graph(target, mermaid=mermaid, as_json=as_json)


@tables_app.command("compact")
def tables_compact(
    target: Target,
    sinks: Sinks = None,
    config: ConfigPath = None,
    *,
    target_mib: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="About how large the new files shall be, in MiB."),
    ] = 128,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Join the small files of tables into large ones, also while a service writes them.

    No row changes, and no transaction. Sinks that have no table of files are passed over.
    """
    from service.cli import tables  # noqa: PLC0415 - see above

    tables.maintain(
        target,
        config,
        sinks or [],
        "compact",
        lambda table: table.compact(target_mib * 1024 * 1024, dry_run=dry_run),
        dry_run=dry_run,
        as_json=as_json,
    )


@tables_app.command("vacuum")
def tables_vacuum(
    target: Target,
    sinks: Sinks = None,
    config: ConfigPath = None,
    *,
    older_than_hours: Annotated[
        int,
        typer.Option(min=24, metavar="N", help="Remove no file that is younger, in hours."),
    ] = 168,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove old files that tables do not name: replaced ones, and those of killed processes.

    A service may write the tables meanwhile.
    """
    from service.cli import tables  # noqa: PLC0415 - see above

    tables.maintain(
        target,
        config,
        sinks or [],
        "vacuum",
        lambda table: table.vacuum(older_than_hours, dry_run=dry_run),
        dry_run=dry_run,
        as_json=as_json,
    )


@tables_app.command("expire")
def tables_expire(
    target: Target,
    sinks: Sinks = None,
    config: ConfigPath = None,
    *,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove old versions of tables: snapshots with their files (Iceberg), log entries (Delta).

    Each table's own properties say what is old. A service may write the tables meanwhile.
    """
    from service.cli import tables  # noqa: PLC0415 - see above

    tables.maintain(
        target,
        config,
        sinks or [],
        "expire",
        lambda table: table.expire(dry_run=dry_run),
        dry_run=dry_run,
        as_json=as_json,
    )


@tables_app.command("files")
def tables_files(
    target: Target,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The name of the sink's step.")],
    config: ConfigPath = None,
    *,
    as_json: Json = False,
) -> None:
    """Print the files that a sink's table is made of now, one in a line."""
    from service.cli import tables  # noqa: PLC0415 - see above

    tables.files(target, config, sink, as_json=as_json)


@dev_app.command("up")
def dev_up(
    *,
    state_dir: StateDir = _STATE,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Create this topic, too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start Kafka and ZooKeeper, say how to reach them, and keep them up until Ctrl-C."""
    from service.cli import commands  # noqa: PLC0415 - see above

    commands.dev_up(state_dir, topic or [], as_json=as_json)
