"""The subcommands of `headrace` by which operators steer replicas: their words and options.

What they do is in the modules beside this one.

The imports inside the functions keep `headrace --help` quick.
"""

from typing import Annotated

import typer

from service.cli.options import ConfigPath, Json, Target

replicas_app = typer.Typer()
moves_app = typer.Typer()

_LONGEST_WHY = 500


def _checked_why(why: str | None) -> str | None:
    if why is not None and not (why.strip() and len(why) <= _LONGEST_WHY):
        message = f"some words are needed, in {_LONGEST_WHY} characters at most"
        raise typer.BadParameter(message)
    return why


_why = typer.Option(
    "--why",
    metavar="TEXT",
    help="Why, for whoever reads it later; it is kept with your name.",
    callback=_checked_why,
)
Why = Annotated[str, _why]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and show everything; write nothing.")
]


@replicas_app.command()
def status(
    target: Target,
    config: ConfigPath = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="With --watch: so many seconds apart.")
    ] = 2.0,
    as_json: Json = False,
) -> None:
    """Show the replicas, who owns which partition, and what is committed of it.

    Everything is read from ZooKeeper and Kafka, so no replica needs to run.
    """
    from service.cli import status as module  # noqa: PLC0415 - see above

    module.status(target, config, watch=watch, interval_seconds=interval, as_json=as_json)


@replicas_app.command()
def pause(target: Target, why: Why, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Have all replicas finish and commit what they began, and begin nothing new.

    It stays so, also for replicas that are started later, until `headrace resume`.
    """
    from service.cli import control  # noqa: PLC0415 - see above

    control.pause(target, config, why, as_json=as_json)


@replicas_app.command()
def resume(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Have paused replicas go on."""
    from service.cli import control  # noqa: PLC0415 - see above

    control.resume(target, config, as_json=as_json)


@replicas_app.command()
def drain(
    target: Target,
    replica: Annotated[
        str, typer.Argument(metavar="REPLICA", help="Its name, as `headrace status` shows it.")
    ],
    config: ConfigPath = None,
    *,
    why: Annotated[str | None, _why] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it have partitions again; needs no --why.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Have one replica hand its partitions over to the others, and give it none.

    It stays so, also when it is started anew, until `--undo`.
    """
    from service.cli import control  # noqa: PLC0415 - see above

    control.drain(target, config, replica, why, undo=undo, as_json=as_json)


@replicas_app.command()
def rebalance(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Have the partitions shared out anew, whoever has them now."""
    from service.cli import control  # noqa: PLC0415 - see above

    control.rebalance(target, config, as_json=as_json)


@moves_app.command("set")
def offsets_set(
    target: Target,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC:PARTITION=OFFSET", help="Where to read on: orders:0=84210. Several may."
        ),
    ],
    why: Why,
    config: ConfigPath = None,
    *,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Set the offsets at which partitions are read on, forward or back.

    Refused while replicas read them, unless they are paused. If one is refused none is moved.
    """
    from service.cli import moving  # noqa: PLC0415 - see above

    moving.set_offsets(target, config, places, why, dry_run=dry_run, as_json=as_json)


@moves_app.command("reset")
def offsets_reset(
    target: Target,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="earliest, latest, or the first record from a time stamp on: "
            "milliseconds since 1970 (UTC).",
        ),
    ],
    why: Why,
    config: ConfigPath = None,
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this topic of the topology.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Only this partition; may be given several times."),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Set the offsets of all partitions, or of some, to the log's start, its end, or a time.

    Refused while replicas read them, unless they are paused. If one is refused none is moved.
    """
    from service.cli import moving  # noqa: PLC0415 - see above

    moving.reset_offsets(
        target, config, to, topic, partition or [], why, dry_run=dry_run, as_json=as_json
    )
