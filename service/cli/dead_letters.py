"""`headrace dead-letters`: list, show, replay and drop the records of the dead-letter topic.

A command that changes something reads twice: once to show what would happen, and once more when
nobody else can change it any longer. Nothing of a record steers a terminal.
"""

import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import typer
from rich.console import Console

from service.cli import common as cli
from service.dead_letters import replay
from service.dead_letters.printable import cut, header_text, utc_text, value_lines
from service.dead_letters.stored import DeadLetterId, Mark, RecordContent, StoredDeadLetter
from service.dead_letters.topic_reader import DeadLetterTopic
from service.errors import ServiceError
from sinks.kafka.dead_letter_sink import KafkaDeadLetters
from topology.masking import escaped

T = TypeVar("T")

app = typer.Typer(
    help="Records that failed: see why, replay them, or drop them.", no_args_is_help=True
)

_LETTER = "LETTER"
_REASON = 60  # characters in a table
_GROUPS = 10
_FACTS = (
    "replays", "pipeline", "step", "attempts", "error_class", "error_at", "reason",
    "failed_at_ms", "headers_error",
)  # fmt: skip
_WORDS = {"to_replay": "would be replayed", "to_drop": "would be dropped"}

Places = Annotated[
    list[str] | None,
    typer.Argument(metavar=_LETTER, help="PARTITION:OFFSET, as `list` shows it. Several may."),
]
Every = Annotated[
    bool, typer.Option("--every", help="All open letters, if neither letter nor filter is given.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]


FILTERS = {
    "topic": typer.Option(None, metavar="NAME", help="Letters of records of this topic."),
    "partition": typer.Option(None, min=0, metavar="N", help="… of this partition of it."),
    "offsets": typer.Option(None, metavar="A-B", help="… from this offset to that one, or of one."),
    "step": typer.Option(None, metavar="NAME", help="… that failed in this step."),
    "error": typer.Option(
        None, metavar="TEXT", help="… of this error class, or with this text in the reason."
    ),
    "since": typer.Option(
        None, metavar="TIME", help="… that failed then or later: 2h, 2026-11-23T10:15:00Z."
    ),
    "until": typer.Option(None, metavar="TIME", help="… that failed before then."),
    "pipeline": typer.Option(
        None, metavar="NAME", help="… of another pipeline that shares the topic."
    ),
}


def filters_of(
    offsets: str | None, since: str | None, until: str | None, **given: Any
) -> replay.Filters:
    """Read the filters. Raises typer.BadParameter."""
    now = int(time.time() * 1000)
    return replay.Filters(
        offsets=None if offsets is None else _read("--offsets", replay.parse_offsets, offsets),
        since_ms=None if since is None else _read("--since", replay.parse_time, since, now),
        until_ms=None if until is None else _read("--until", replay.parse_time, until, now),
        **given,
    )


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `FILTERS`; it gets their result as `filters`."""
    own = [each for each in signature(command).parameters.values() if each.name != "filters"]
    types: dict[str, Any] = dict.fromkeys(FILTERS, str | None) | {"partition": int | None}
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=types[name])
        for name, option in FILTERS.items()
    ]

    @wraps(command)
    def run(**words: Any) -> None:
        filters = filters_of(**{name: words.pop(name) for name in FILTERS})
        command(**words, filters=filters)

    run.__signature__ = Signature([*own, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*own, *options)}
    return run


@app.command("list")
@with_filters
def dead_letters_list(
    target: cli.Target,
    config: cli.ConfigPath = None,
    *,
    filters: replay.Filters,
    every: Annotated[
        bool, typer.Option("--all", help="Also letters that were replayed or dropped.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Show the newest N.")
    ] = 50,
    as_json: cli.Json = False,
) -> None:
    """List the open letters, the newest first, and count all of them by step and error."""
    with _opened(target, config) as topic:
        topic.refresh()
        listed = _listed(topic, replay.Selection(filters, all=every), limit)
    if as_json:
        cli.print_json({"topic": topic.name, "pipeline": topic.pipeline, **listed.as_json()})
    else:
        show_list(cli.answers(), topic.name, listed)


@app.command("show")
def dead_letters_show(
    target: cli.Target,
    letter: Annotated[
        str, typer.Argument(metavar=_LETTER, help="PARTITION:OFFSET, as `list` shows it.")
    ],
    config: cli.ConfigPath = None,
    *,
    most: Annotated[
        int, typer.Option("--bytes", min=0, metavar="N", help="At most N bytes of the value.")
    ] = 2_000,
    value_only: Annotated[
        bool, typer.Option("--value-only", help="Write the value as it is, for a file or a pipe.")
    ] = False,
    as_json: cli.Json = False,
) -> None:
    """Show one letter: what happened, its record's headers, key and value, what was done since.

    What would steer a terminal is escaped.
    """
    id_ = _read(_LETTER, replay.parse_id, letter)
    if value_only and sys.stdout.isatty():
        message = "it writes bytes as they are, which a terminal may obey: > FILE or | COMMAND"
        raise typer.BadParameter(message, param_hint="--value-only")
    with _opened(target, config) as topic:
        topic.refresh(after=id_)
        found = next(topic.some([id_]), None)
        if found is None:
            topic.explain(id_)
        content = topic.content(found)
        marks = topic.marks.get(id_, ())
    if value_only:
        if isinstance(content, str):
            raise ServiceError(f"1 of 1 dead letters were not written, 0 were: {content}")
        sys.stdout.buffer.write(content.value or b"")
        sys.stdout.buffer.flush()
    elif as_json:
        cli.print_json(one_as_json(found, content, marks))
    else:
        show_one(cli.answers(), found, content, marks, most)


@app.command("replay")
@with_filters
def dead_letters_replay(
    target: cli.Target,
    why: cli.Why,
    places: Places = None,
    config: cli.ConfigPath = None,
    *,
    filters: replay.Filters,
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
        typer.Option("--rate", min=0.1, metavar="N", help="Send at most N in a second."),
    ] = None,
    dry_run: cli.DryRun = False,
    yes: Yes = False,
    as_json: cli.Json = False,
) -> None:
    """Send records of letters again, each to where it came from, and mark the letters.

    Both happen in one transaction, so a crash leaves no letter sent and unmarked. A record's
    headers say where it came from first and how often it was sent again.
    """
    options = replay.ReplayRequest(max_replays, again, to, per_second)
    selection = _selection(places, filters, every=every, again=again)
    request = Request("replay", "replayed", why, dry_run, yes, as_json)
    request.carry_out(target, config, selection, partial(replay.replay, options))


@app.command("drop")
@with_filters
def dead_letters_drop(
    target: cli.Target,
    why: cli.Why,
    places: Places = None,
    config: cli.ConfigPath = None,
    *,
    filters: replay.Filters,
    every: Every = False,
    dry_run: cli.DryRun = False,
    yes: Yes = False,
    as_json: cli.Json = False,
) -> None:
    """Mark letters as dropped: they are not listed any more, and stay in their topic."""
    selection = _selection(places, filters, every=every)
    request = Request("drop", "dropped", why, dry_run, yes, as_json)
    request.carry_out(target, config, selection, replay.drop)


class Request(NamedTuple):
    verb: Literal["replay", "drop"]
    done: Literal["replayed", "dropped"]
    why: str
    dry_run: bool
    yes: bool
    as_json: bool

    def carry_out(
        self,
        target: str,
        config: Path | None,
        selection: replay.Selection,
        change: Callable[..., list[replay.DeadLetterResult]],
    ) -> None:
        """Change the letters, and print what became of each. Raises ServiceError if one is not."""
        with _opened(target, config) as topic:
            results = change(topic, selection, cli.signed(self.why), self.confirm)
        count = sum(each.outcome == self.done for each in results)
        not_done = [each for each in results if each.outcome in ("refused", "failed")]
        if self.as_json:
            facts: dict[str, Any] = {"topic": topic.name, "pipeline": topic.pipeline}
            facts |= {"dry_run": self.dry_run, "why": self.why}
            facts |= {self.done: count, "refused": len(not_done)}
            facts["letters"] = {str(each.letter.id): each.as_json() for each in results}
            cli.print_json(facts)
        else:
            show_results(cli.answers(), results)
        if not_done:
            raise ServiceError(
                f"{len(not_done)} of {len(results)} dead letters were not {self.done}, {count} "
                f"were: {not_done[0].note}"
            )

    def confirm(self, results: Sequence[replay.DeadLetterResult]) -> bool:
        if self.dry_run:
            return False
        if self.yes:
            return True
        count = sum(each.outcome == f"to_{self.verb}" for each in results)
        if not sys.stdin.isatty():
            do_it = f"give --yes to {self.verb} {count} letters, or --dry-run"
            raise typer.BadParameter(f"nobody can be asked here: {do_it}", param_hint="--yes")
        show_results(Console(stderr=True), results)
        return typer.confirm(f"{self.verb} {count} letters?", err=True)


def _selection(
    texts: Sequence[str] | None, filters: replay.Filters, *, every: bool, again: bool = False
) -> replay.Selection:
    """Select letters by name, by filters, or `every` one. Raises typer.BadParameter."""
    is_filtered = filters != replay.Filters()
    ids = tuple(_read(_LETTER, replay.parse_id, each) for each in texts or ())
    if ids and (is_filtered or every):
        message = "either letters or filters are needed, not both"
        raise typer.BadParameter(message, param_hint=_LETTER)
    if every and is_filtered:
        raise typer.BadParameter("it goes with no filter", param_hint="--every")
    if not (ids or is_filtered or every):
        message = "which letters? PARTITION:OFFSET of some, a filter, or --every is needed"
        raise typer.BadParameter(message, param_hint=_LETTER)
    return replay.Selection(filters, ids, all=again)


@contextmanager
def _opened(target: str, config: Path | None) -> Iterator[DeadLetterTopic]:
    """Open the topology's dead-letter topic. Raises ServiceError if there is none."""
    topology, settings = cli.load_topology(target), cli.configured(config)
    sink = topology.dead_letters.sink
    if not isinstance(sink, KafkaDeadLetters):
        raise ServiceError(
            f"the topology's dead letters go into a {type(sink).__name__}; these commands need a "
            "KafkaDeadLetters, whose topic can be read from outside"
        )
    pipeline = settings.pipeline.name or topology.name
    topic = DeadLetterTopic(sink.topic, pipeline, sink.client_properties(settings.kafka))
    topic.open()
    with closing(topic):
        yield topic


def _read(hint: str, parse: Callable[..., T], *words: object) -> T:
    """Parse an option's words. Raises typer.BadParameter."""
    try:
        return parse(*words)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


@dataclass(frozen=True, slots=True)
class Listed:
    """The letters that are shown, the newest first, and the counts of all that were meant."""

    letters: Sequence[tuple[StoredDeadLetter, Sequence[Mark]]]
    by_error: Counter[tuple[str, str]]  # step and error class
    reasons: Mapping[tuple[str, str], str]  # one of each
    skipped: replay.Skipped

    def as_json(self) -> dict[str, Any]:
        return {
            "total": self.by_error.total(),
            "by_error": [
                {"step": step, "error_class": error, "letters": count}
                for (step, error), count in self.by_error.most_common()
            ],
            "passed_over": asdict(self.skipped),
            "letters": [_facts(letter, marks) for letter, marks in self.letters],
        }


def _listed(topic: DeadLetterTopic, selection: replay.Selection, limit: int) -> Listed:
    """Collect the newest letters, in memory up to `limit`; the others are counted."""
    skipped, by_error = replay.Skipped(), Counter[tuple[str, str]]()
    reasons: dict[tuple[str, str], str] = {}

    def counted() -> Iterator[tuple[int, DeadLetterId, StoredDeadLetter]]:
        for letter in replay.select(topic, selection, skipped):
            by_error[kind := (letter.step, letter.error_class)] += 1
            reasons[kind] = cut(letter.reason, _REASON)
            yield letter.failed_at_ms, letter.id, letter.bare()

    newest = [each[-1] for each in heapq.nlargest(limit, counted(), key=lambda each: each[:2])]
    letters = [(each, topic.marks.get(each.id, ())) for each in newest]
    return Listed(letters, by_error, reasons, skipped)


def show_list(console: Console, topic: str, listed: Listed) -> None:
    """Print a line for each kind of error, with one of its reasons, and a table of letters."""
    rows = []
    for letter, marks in listed.letters:
        said = map(escaped, (str(letter.read), letter.step, letter.error_class))
        reason, state = cut(letter.reason, _REASON), marks[-1].kind if marks else "open"
        rows.append((str(letter.id), utc_text(letter.failed_at_ms), *said, reason, state))
    groups = listed.by_error.most_common(_GROUPS)
    counts = [
        f"{count:>7,}  {escaped(step)}: {escaped(error)}: "
        f"{listed.reasons[step, error].removeprefix(f'{error}: ')}"
        for (step, error), count in groups
    ]
    cli.print_lines(counts, console)
    if rows:
        columns = ("letter", "failed (UTC)", "record", "step", "error", "reason", "state")
        console.print(cli.table_of(columns, rows))
    total, shown = listed.by_error.total(), len(rows)
    newest = "" if shown == total else f"; the newest {shown:,} are shown (--limit)"
    skipped = listed.skipped
    more = (
        (skipped.dealt_with, "were replayed or dropped; --all lists them"),
        (skipped.of_others, "are of other pipelines; --pipeline NAME lists them"),
        (skipped.notices, "tell of offsets without a record, which nothing can send again"),
        (skipped.unreadable, "are no letters of Headrace"),
    )
    lines = [f"{total:,} letters in '{topic}'{newest}"]
    lines += [f"{count:,} more {what}" for count, what in more if count]
    cli.print_lines(lines, console)


def show_one(
    console: Console,
    letter: StoredDeadLetter,
    content: RecordContent | str,
    marks: Sequence[Mark],
    most: int,
) -> None:
    facts = [
        ("letter", str(letter.id)),
        ("failed (UTC)", utc_text(letter.failed_at_ms)),
        ("pipeline", escaped(letter.pipeline or "(not told)")),
        ("step", escaped(letter.step)),
        ("attempts", f"{letter.attempts}"),
        ("error", escaped(letter.error_class)),
        *([("error at", escaped(letter.error_at))] if letter.error_at else []),
        ("record", escaped(str(letter.read))),
        ("its time (UTC)", utc_text(letter.read.timestamp_ms)),
    ]
    if letter.replays:
        facts.append(("came first from", escaped(str(letter.origin))))
        facts.append(("replays before", str(letter.replays)))
    facts += [("state", escaped(str(mark))) for mark in marks] or [("state", "open")]
    cli.print_lines([f"{name + ':':<17}{fact}" for name, fact in facts], console)
    parts = [("reason", [escaped(line) for line in letter.reason.split("\n")])]
    if isinstance(content, str):
        parts.append(("value", [escaped(content)]))
    else:
        headers = [f"{escaped(name)}: {header_text(value)}" for name, value in content.headers]
        if letter.headers_error is not None:
            headers = [f"(left out) {escaped(letter.headers_error)}"]
        value = content.value
        title = "value" if value is None else f"value ({len(value):,} bytes)"
        parts += [
            ("headers", headers or ["(none)"]),
            ("key", [header_text(content.key)]),
            (title, ["(null)"] if value is None else value_lines(value, most)),
        ]
    for title, lines in parts:
        cli.print_lines([f"{title}:", *(f"  {line}" for line in lines)], console)


def show_results(console: Console, results: Sequence[replay.DeadLetterResult]) -> None:
    cells = []
    for each in results:
        is_sent = each.outcome in ("to_replay", "replayed")
        to = each.to or (each.target if is_sent else "")
        outcome = _WORDS.get(each.outcome, each.outcome)
        row = (", ".join(map(str, each.ids)), str(each.letter.read), outcome, to)
        cells.append([escaped(text) for text in row])
    if results:
        console.print(cli.table_of(("letter", "record", "what happens", "to"), cells))
    counts = Counter(_WORDS.get(each.outcome, each.outcome) for each in results)
    said = [f"{each.letter.id}: {escaped(each.note)}" for each in results if each.note]
    said.append(", ".join(f"{count} {word}" for word, count in counts.items()) or "no open letter")
    if not any(each.outcome in ("replayed", "dropped") for each in results):
        said.append("nothing was sent or marked")
    cli.print_lines(said, console)


def one_as_json(
    letter: StoredDeadLetter, content: RecordContent | str, marks: Sequence[Mark]
) -> dict[str, Any]:
    """Return a letter and its record for JSON; bytes are base64."""
    if isinstance(content, str):
        return {**_facts(letter, marks), "content": None, "content_missing": content}
    return {**_facts(letter, marks), "content": msgspec.to_builtins(content._asdict())}


def _facts(letter: StoredDeadLetter, marks: Sequence[Mark]) -> dict[str, Any]:
    return {
        "letter": str(letter.id),
        "record": letter.read._asdict(),
        "origin": letter.origin._asdict(),
        **{name: getattr(letter, name) for name in _FACTS},
        "key_bytes": letter.key_digest.size if letter.key_digest else None,
        "value_bytes": letter.value_digest.size if letter.value_digest else letter.value_bytes,
        "state": marks[-1].kind if marks else "open",
        "marks": [msgspec.to_builtins(mark) for mark in marks],
    }
