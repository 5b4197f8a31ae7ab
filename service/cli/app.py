"""Every subcommand of `headrace`: its words and its options.

What they do is in the modules beside this one.

The imports inside the functions keep `headrace --help` quick.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.letters_app import letters_app
from service.cli.operating import moves_app, replicas_app
from service.cli.options import ConfigPath, Json, Target

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
offsets_app = typer.Typer(
    help="What is committed in ZooKeeper, against what Kafka has.", no_args_is_help=True
)
tables_app = typer.Typer(
    help="The files of the tables that a topology writes, and their maintenance.",
    no_args_is_help=True,
)
transactions_app = typer.Typer(
    help="What is open and what is committed, of a topology that is exactly-once.",
    no_args_is_help=True,
)
dev_app = typer.Typer(
    help="Kafka and ZooKeeper for development; they need headrace\\[spark] and Java.",
    no_args_is_help=True,
)
app.add_typer(replicas_app)  # without a name: its commands are ours
offsets_app.add_typer(moves_app)
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


def _checked_path(path: str) -> str:
    names = path.rstrip("/").split("/")
    if len(names) == 1 or names[0] or any(each in ("", ".", "..") for each in names[1:]):
        message = f"'{path}': a ZooKeeper path such as /kafka-spouts/word-count is needed"
        raise typer.BadParameter(message)
    return path.rstrip("/")


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


@offsets_app.command("show")
def offsets_show(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Show committed, frontier, log start, log end, lag and epoch of every partition.

    The frontier is a running service's own; it is asked for it at the configured [http] port.
    """
    from service.cli import commands  # noqa: PLC0415 - see above

    commands.offsets_show(target, config, as_json=as_json)


@offsets_app.command("import-storm")
def offsets_import_storm(
    target: Target,
    layout: Annotated[
        Literal["core", "trident", "trident-client"],
        typer.Option(
            "--from",
            help="Who wrote the offsets: core and trident of storm-kafka, "
            "trident-client of storm-kafka-client.",
        ),
    ],
    path: Annotated[
        str,
        typer.Option(
            "--path",
            metavar="PATH",
            help="<zkRoot>/<id> of a core spout; "
            "<transactional.zookeeper.root>/<the stream's txid> of Trident.",
            callback=_checked_path,
        ),
    ],
    config: ConfigPath = None,
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this topic of the topology.")
    ] = None,
    storm_zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOSTS",
            help="Storm's ZooKeeper, if it is another one than the configuration's.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and show everything; write nothing.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Import the others when partitions are refused.")
    ] = False,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Import offsets below the log's start as they stand."),
    ] = False,
    watch_seconds: Annotated[
        float,
        typer.Option(min=0, metavar="N", help="How long to watch whether Storm still commits."),
    ] = 3.0,
    as_json: Json = False,
) -> None:
    """Take over the offsets of a Storm topology that is deactivated.

    Storm's nodes stay as they are. If one partition is refused nothing is written.
    """
    from service.cli import import_storm  # noqa: PLC0415 - see above

    order = import_storm.Order(
        layout=layout,
        path=path,
        storm_hosts=storm_zookeeper,
        topic=topic,
        dry_run=dry_run,
        partial=partial,
        allow_loss=allow_loss,
        watch_seconds=watch_seconds,
    )
    import_storm.import_storm(target, config, order, as_json=as_json)


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


@transactions_app.command("show")
def transactions_show(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Show what is open, what each sink has committed, and what a restart would read again.

    Sinks are opened as a run would open them, so empty tables and topics may be created.
    """
    from service.cli import transactions  # noqa: PLC0415 - see above

    transactions.show(target, config, as_json=as_json)


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
