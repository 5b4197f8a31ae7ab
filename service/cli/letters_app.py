"""The subcommands of `headrace dead-letters`: their words and options.

What they do is in the modules beside this one.

The imports inside the functions keep `headrace --help` quick.
"""

from typing import Annotated

import typer

from service.cli.common import CheckOnly, ConfigPath, Json, Target, Why

letters_app = typer.Typer(
    help="Records that could not be processed: see why, send them again, or drop them.",
    no_args_is_help=True,
)

Topic = Annotated[
    str | None, typer.Option(metavar="NAME", help="Letters of records of this topic.")
]
Number = Annotated[int | None, typer.Option(min=0, metavar="N", help="… of this partition of it.")]
Offsets = Annotated[
    str | None, typer.Option(metavar="A-B", help="… from this offset to that one, or of one.")
]
Step = Annotated[str | None, typer.Option(metavar="NAME", help="… that failed in this step.")]
Error = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="… of this error class, or with this text in the reason."),
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="… that failed then or later: 2h, 2026-11-23T10:15:00Z."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="… that failed before then.")]
Of = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="… of another pipeline that shares the topic."),
]
Places = Annotated[
    list[str] | None,
    typer.Argument(metavar="LETTER", help="PARTITION:OFFSET, as `list` shows it. Several may."),
]
Every = Annotated[
    bool, typer.Option("--every", help="All open letters, if neither letter nor filter is given.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]


@letters_app.command("list")
def letters_list(
    target: Target,
    config: ConfigPath = None,
    *,
    topic: Topic = None,
    partition: Number = None,
    offsets: Offsets = None,
    step: Step = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    pipeline: Of = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also letters that were replayed or dropped.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Show so many, the newest.")
    ] = 50,
    as_json: Json = False,
) -> None:
    """List the open letters, the newest first, and count all of them by step and error."""
    from service.cli import letters  # noqa: PLC0415 - see above

    filters = letters.filters_of(topic, partition, offsets, step, error, since, until, pipeline)
    letters.show_list(target, config, filters, every=every, limit=limit, as_json=as_json)


@letters_app.command("show")
def letters_show(
    target: Target,
    letter: Annotated[
        str, typer.Argument(metavar="LETTER", help="PARTITION:OFFSET, as `list` shows it.")
    ],
    config: ConfigPath = None,
    *,
    most: Annotated[
        int, typer.Option("--bytes", min=0, metavar="N", help="So much of the value at most.")
    ] = 2_000,
    value_only: Annotated[
        bool, typer.Option("--value-only", help="Write the value as it is, for a file or a pipe.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show one letter: what happened, its record's headers, key and value, what was done since.

    What would steer a terminal is escaped.
    """
    from service.cli import letters  # noqa: PLC0415 - see above

    letters.show_one(target, config, letter, most, value_only=value_only, as_json=as_json)


@letters_app.command("replay")
def letters_replay(
    target: Target,
    why: Why,
    places: Places = None,
    config: ConfigPath = None,
    *,
    topic: Topic = None,
    partition: Number = None,
    offsets: Offsets = None,
    step: Step = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    pipeline: Of = None,
    every: Every = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Send to this topic instead of the record's own."),
    ] = None,
    max_replays: Annotated[
        int, typer.Option(min=1, max=1_000, metavar="N", help="How often a record may be sent.")
    ] = 1,
    again: Annotated[
        bool, typer.Option("--again", help="Also letters that were replayed or dropped.")
    ] = False,
    per_second: Annotated[
        float | None,
        typer.Option("--rate", min=0.1, metavar="N", help="Send so many in a second at most."),
    ] = None,
    dry_run: CheckOnly = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Send records of letters again, each to where it came from, and mark the letters.

    Both happen in one transaction, so a crash leaves no letter sent and unmarked. A record tells
    in its headers where it came from first and how often it was sent again.
    """
    from service.cli import letters  # noqa: PLC0415 - see above

    filters = letters.filters_of(topic, partition, offsets, step, error, since, until, pipeline)
    order = letters.Order(
        letters.chosen(places, filters, every=every),
        why,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
        to=to,
        max_replays=max_replays,
        again=again,
        per_second=per_second,
    )
    letters.replay(target, config, order)


@letters_app.command("drop")
def letters_drop(
    target: Target,
    why: Why,
    places: Places = None,
    config: ConfigPath = None,
    *,
    topic: Topic = None,
    partition: Number = None,
    offsets: Offsets = None,
    step: Step = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    pipeline: Of = None,
    every: Every = False,
    dry_run: CheckOnly = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Mark letters as dropped: they are not listed any more, and stay in their topic."""
    from service.cli import letters  # noqa: PLC0415 - see above

    filters = letters.filters_of(topic, partition, offsets, step, error, since, until, pipeline)
    order = letters.Order(
        letters.chosen(places, filters, every=every),
        why,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    letters.drop(target, config, order)
