"""What dead letters look like to a person, and as JSON. Nothing of a letter steers a terminal."""

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.dead_letters.commands import DeadLetterResult, Skipped
from service.dead_letters.format import cut, header_text, value_lines
from service.dead_letters.messages import Mark, RecordContent, StoredDeadLetter, utc_text
from topology.masking import escaped

_REASON = 60  # characters in a table
_GROUPS = 10
_WORDS = {"to_replay": "would be replayed", "to_drop": "would be dropped"}


@dataclass(frozen=True, slots=True)
class Listed:
    """The letters that are shown, the newest first, and how many there are."""

    letters: Sequence[tuple[StoredDeadLetter, Sequence[Mark]]]
    by_error: Counter[tuple[str, str]]  # step and error class
    skipped: Skipped

    @property
    def total(self) -> int:
        """How many letters were meant, shown or not."""
        return self.by_error.total()

    def as_json(self) -> dict[str, Any]:
        """The list as JSON takes it."""
        groups = [
            {"step": step, "error_class": error, "letters": count}
            for (step, error), count in self.by_error.most_common()
        ]
        return {
            "total": self.total,
            "by_error": groups,
            "passed_over": asdict(self.skipped),
            "letters": [_facts(letter, marks) for letter, marks in self.letters],
        }


def show_letters(console: Console, topic: str, listed: Listed) -> None:
    """Print a table of letters, and a line for each kind of error."""
    table = Table()
    for name in ("letter", "failed (UTC)", "record", "step", "error", "reason", "state"):
        table.add_column(name, no_wrap=name == "letter")
    for letter, marks in listed.letters:
        cells = (
            str(letter.id),
            utc_text(letter.failed_at_ms),
            escaped(str(letter.read)),
            escaped(letter.step),
            escaped(letter.error_class),
            cut(letter.reason, _REASON),
            marks[-1].kind if marks else "open",
        )
        table.add_row(*map(escape, cells))
    if listed.letters:
        console.print(table)
    for line in _summary(topic, listed):
        console.print(escape(line), soft_wrap=True, highlight=False)


def show_letter(
    console: Console,
    letter: StoredDeadLetter,
    content: RecordContent | str,
    marks: Sequence[Mark],
    most: int,
) -> None:
    """Print all that is known of one letter."""
    facts = {
        "letter": str(letter.id),
        "failed (UTC)": utc_text(letter.failed_at_ms),
        "pipeline": escaped(letter.pipeline or "(not told)"),
        "step": escaped(letter.step),
        "attempts": f"{letter.attempts}",
        "error": escaped(letter.error_class),
        "record": escaped(str(letter.read)),
        "its time (UTC)": utc_text(letter.read.timestamp_ms),
    }
    if letter.replays:
        facts["came first from"] = escaped(str(letter.origin))
        facts["replays before"] = str(letter.replays)
    for name, fact in facts.items():
        _say(console, f"{name + ':':<17}{fact}")
    for mark in marks:
        _say(console, f"{'state:':<17}{escaped(str(mark))}")
    if not marks:
        _say(console, f"{'state:':<17}open")
    _part(console, "reason", [escaped(line) for line in letter.reason.split("\n")])
    if isinstance(content, str):
        _part(console, "value", [escaped(content)])
        return
    headers = [f"{escaped(name)}: {header_text(value)}" for name, value in content.headers]
    if letter.headers_error is not None:
        headers = [f"(left out) {escaped(letter.headers_error)}"]
    _part(console, "headers", headers or ["(none)"])
    _part(console, "key", [header_text(content.key)])
    value = content.value
    shown = ["(null)"] if value is None else value_lines(value, most)
    _part(console, "value" if value is None else f"value ({len(value):,} bytes)", shown)


def show_rows(console: Console, rows: Sequence[DeadLetterResult]) -> None:
    """Print what becomes of letters, and a line for each that needs more words."""
    table = Table()
    for name in ("letter", "record", "what happens", "to"):
        table.add_column(name)
    for row in rows:
        is_sent = row.outcome in ("to_replay", "replayed")
        to = row.to or (row.target if is_sent else "")
        places = ", ".join(map(str, row.ids))
        cells = (places, str(row.letter.read), _WORDS.get(row.outcome, row.outcome), to)
        table.add_row(*(escape(escaped(each)) for each in cells))
    if rows:
        console.print(table)
    counts = Counter(_WORDS.get(row.outcome, row.outcome) for row in rows)
    said = [f"{row.letter.id}: {escaped(row.note)}" for row in rows if row.note]
    said.append(", ".join(f"{count} {word}" for word, count in counts.items()) or "no open letter")
    if not any(row.outcome in ("replayed", "dropped") for row in rows):
        said.append("nothing was sent or marked")
    for line in said:
        _say(console, line)


def letter_facts(
    letter: StoredDeadLetter, content: RecordContent | str, marks: Sequence[Mark]
) -> dict[str, Any]:
    """A letter and its record as JSON takes it; bytes are base64."""
    if isinstance(content, str):
        return {**_facts(letter, marks), "content": None, "content_missing": content}
    headers = [[name, _base64(value)] for name, value in content.headers]
    record = {"key": _base64(content.key), "value": _base64(content.value), "headers": headers}
    return {**_facts(letter, marks), "content": record}


def _facts(letter: StoredDeadLetter, marks: Sequence[Mark]) -> dict[str, Any]:
    return {
        "letter": str(letter.id),
        "record": letter.read._asdict(),
        "origin": letter.origin._asdict(),
        "replays": letter.replays,
        "pipeline": letter.pipeline,
        "step": letter.step,
        "attempts": letter.attempts,
        "error_class": letter.error_class,
        "reason": letter.reason,
        "failed_at_ms": letter.failed_at_ms,
        "headers_error": letter.headers_error,
        "key_bytes": letter.key_digest.size if letter.key_digest else None,
        "value_bytes": letter.value_digest.size if letter.value_digest else letter.value_bytes,
        "state": marks[-1].kind if marks else "open",
        "marks": [msgspec.to_builtins(mark) for mark in marks],
    }


def _summary(topic: str, listed: Listed) -> list[str]:
    lines = []
    for (step, error), count in listed.by_error.most_common(_GROUPS):
        lines.append(f"{count:>7,}  {escaped(step)}: {escaped(error)}")
    shown = len(listed.letters)
    lines.append(f"{listed.total:,} letters in '{topic}'" + _newest(shown, listed.total))
    passed = listed.skipped
    for count, what in (
        (passed.dealt_with, "were replayed or dropped; --all lists them"),
        (passed.of_others, "are of other pipelines; --pipeline NAME lists them"),
        (passed.notices, "tell of offsets without a record, which nothing can send again"),
        (passed.unreadable, "are no letters of Headrace"),
    ):
        if count:
            lines.append(f"{count:,} more {what}")
    return lines


def _newest(shown: int, total: int) -> str:
    return "" if shown == total else f"; the newest {shown:,} are shown (--limit)"


def _part(console: Console, title: str, lines: Sequence[str]) -> None:
    _say(console, f"{title}:")
    for line in lines:
        _say(console, f"  {line}")


def _say(console: Console, line: str) -> None:
    console.print(escape(line), soft_wrap=True, highlight=False)


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
