"""Options, access to a pipeline from outside its process, and output, for every subcommand.

What is slow is imported inside functions: `headrace init` and errors need none of it.
"""

import errno
import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from partition.errors import (
    KafkaMisconfigured,
    KafkaUnavailable,
    OwnershipLost,
    StoreError,
    StoreHostsUnknown,
    StoreUnavailable,
)
from partition.interfaces import Catalogue, Claimed, StoredOffset, Topic
from partition.offsets.offset_store import OffsetStore
from partition.records import Partition
from partition.replicas.balance import Note
from service.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE, ServiceError
from topology.errors import InvalidTopology
from topology.masking import escaped

if TYPE_CHECKING:
    from service.config.settings import Config
    from service.wiring import Parts
    from topology.steps import Source
    from topology.topology import Topology

T = TypeVar("T")

ASK_SECONDS = 20.0  # above what Kafka's and ZooKeeper's clients take themselves
_PACKAGES = ("service", "topology", "sinks", "partition", "acker", "transactions", "headrace")
_LONGEST = 1000
_LONGEST_WHY = 500
_WIDE = 500  # characters

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:TOPOLOGY", help="A module and the topology in it: my_package.flow:topology."
    ),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration file (TOML); HEADRACE_* environment variables override it.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the facts as one JSON object, the last line.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]


def _checked_why(why: str | None) -> str | None:
    if why is not None and not (why.strip() and len(why) <= _LONGEST_WHY):
        raise typer.BadParameter(f"some words are needed, in {_LONGEST_WHY} characters at most")
    return why


why_option = typer.Option(
    "--why",
    metavar="TEXT",
    help="The reason, for whoever reads it later; it is kept with your name.",
    callback=_checked_why,
)
Why = Annotated[str, why_option]


@contextmanager
def opened_pipeline(
    target: str, config: Path | None, check: "Callable[[Topology], object]" = lambda _: None
) -> "Iterator[Parts]":
    """Load a pipeline; open its catalogue and store.

    `check` judges the command's options before anything is opened. Raises InvalidTopology,
    BadConfig, KafkaError, StoreUnavailable.
    """
    from service.wiring import wire

    topology = load_topology(target)
    check(topology)
    parts = wire(topology, configured(config))
    with ExitStack() as closing:
        for each in (parts.catalogue, parts.store):
            closing.callback(each.close)
            each.open()
        yield parts


def load_topology(target: str) -> "Topology":
    """Import and validate the topology that MODULE:TOPOLOGY names. Raises InvalidTopology."""
    from service.loading import load_topology as load

    topology = load(target)
    topology.validate()
    return topology


def configured(path: Path | None, overrides: Mapping[str, Any] | None = None) -> "Config":
    """Load the configuration, and set up logging as it says. Raises BadConfig."""
    from service.config.settings import load
    from service.observability import logs

    settings = load(path, overrides)
    logs.configure(settings.logs.level, settings.logs.format, settings.secrets())
    return settings


def answer(asked: Future[T]) -> T:
    """Wait for Kafka's answer. Raises as the catalogue does; KafkaUnavailable if none comes."""
    try:
        return asked.result(ASK_SECONDS)
    except TimeoutError:
        reason = f"no answer in {ASK_SECONDS:g} seconds"
        raise KafkaUnavailable("about topics and offsets", reason) from None


def done(asked: Future[T], what: str) -> T:
    """Wait for a write to the store. Raises as the store does; StoreUnavailable if it is open."""
    try:
        return asked.result(ASK_SECONDS)
    except TimeoutError:
        reason = f"no answer in {ASK_SECONDS:g} seconds; it may be carried out yet"
        raise StoreUnavailable(what, reason) from None


def claimed(store: OffsetStore, partition: Partition, what: str) -> Claimed:
    """Claim a partition; once more where a session ended meanwhile. Raises as the store does."""
    try:
        return done(store.claim(partition), what)
    except OwnershipLost:
        return done(store.claim(partition), what)


def stored_offset(store: OffsetStore, partition: Partition) -> StoredOffset | StoreError | None:
    """Return the stored offset, or the reason it cannot be read. Raises StoreUnavailable."""
    try:
        return store.load(partition)
    except StoreUnavailable:
        raise
    except StoreError as error:
        return error


def topics_of(sources: "Iterable[Source]", catalogue: Catalogue) -> dict[str, Topic]:
    """Return the topics of sources. Raises as the catalogue does; a pattern may match none."""
    found: dict[str, Topic] = {}
    for source in sources:
        name = source.topic
        if isinstance(name, str):
            found[name] = answer(catalogue.topic(name))
        else:
            every = sorted(answer(catalogue.topics()).items())
            found |= {each: topic for each, topic in every if name.fullmatch(each)}
    return found


def partitions_of(topics: Iterable[Topic]) -> list[Partition]:
    return [Partition(topic.name, number) for topic in topics for number in topic.partitions]


def exit_code_of(error: BaseException) -> int:
    if isinstance(error, ServiceError):
        return error.exit_code
    if isinstance(error, InvalidTopology):
        return EXIT_USAGE
    is_config = isinstance(error, (KafkaMisconfigured, StoreHostsUnknown))
    return EXIT_CONFIG if is_config else EXIT_FAILED


def is_ours(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _PACKAGES


def describe(error: BaseException) -> str:
    """Return an error in one line: our own by their message, others with their class, too."""
    name = type(error).__name__
    inner = error.args[0] if error.args else None
    said = getattr(inner, "str", None)  # a KafkaException's KafkaError
    text = str(said()) if callable(said) else str(error)
    text = "\n".join([text, *getattr(error, "__notes__", ())])
    line = " | ".join(part for part in map(str.strip, text.splitlines()) if part)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        from sinks.errors import with_free_space

        line = with_free_space(line, error.filename)
    line = line if is_ours(error) and line else f"{name}: {line}" if line else name
    return escaped(line)[:_LONGEST]


def answers() -> Console:
    """Return a console on standard output; where it is no terminal, long lines are not broken.

    A text that was broken to fit could not be found by `grep`.
    """
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def table_of(
    columns: Iterable[str], rows: Iterable[Sequence[str | int | None]], title: str | None = None
) -> Table:
    """Lay rows out as a table; a column whose name begins with ">" is aligned to the right."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        justify: Any = "right" if name.startswith(">") else "left"
        table.add_column(escape(name.removeprefix(">")), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(escape(each) if isinstance(each, str) else cell(each) for each in row))
    return table


def print_lines(lines: Iterable[str], console: Console | None = None) -> None:
    console = console or answers()
    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)


def print_json(facts: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def cell(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def signed(why: str) -> Note:
    """Return who gives a command (user@host), when, and why."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return Note(f"{user}@{socket.gethostname()}", why, int(time.time() * 1000))


def sinks_failed(what: str, sinks: Iterable[str]) -> ServiceError:
    """Return the error of a command that failed for some sinks, and is done for the others."""
    return ServiceError(f"{what}: {', '.join(sinks)}; what is wrong stands beside each")
