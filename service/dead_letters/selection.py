"""Which letters an operator means: by what they say, or by their places. Pure.

What cannot be read raises ValueError, which says what is allowed.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from service.dead_letters.letter import Letter, Origin, Place

_PLACE = re.compile(r"(\d{1,9}):(\d{1,18})")
_OFFSETS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_MILLISECONDS = re.compile(r"\d{1,15}")
_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Filters:
    """What a letter must say. A filter that is None lets every letter through."""

    topic: str | None = None  # of its record
    partition: int | None = None
    offsets: tuple[int, int] | None = None  # first and last
    step: str | None = None
    error: str | None = None  # the error's class, or a part of the reason, in any case
    since_ms: int | None = None  # when it failed
    until_ms: int | None = None
    pipeline: str | None = None

    @property
    def any(self) -> bool:
        """Whether there is one at all."""
        return self != NO_FILTERS

    def fit(self, letter: Letter) -> bool:
        """Whether a letter says all that."""
        return (
            (self.pipeline is None or letter.pipeline == self.pipeline)
            and (self.step is None or letter.step == self.step)
            and (self.since_ms is None or letter.failed_at_ms >= self.since_ms)
            and (self.until_ms is None or letter.failed_at_ms < self.until_ms)
            and (self.error is None or _has_error(letter, self.error))
            # A record that was sent again has two places: operators may know it by either.
            and (self._fits(letter.origin) or self._fits(letter.read))
        )

    def _fits(self, record: Origin) -> bool:
        first, last = self.offsets or (record.offset, record.offset)
        return (
            self.topic in (None, record.topic)
            and self.partition in (None, record.partition)
            and first <= record.offset <= last
        )


NO_FILTERS = Filters()


def parse_place(text: str) -> Place:
    """Read PARTITION:OFFSET of the dead-letter topic."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"'{text}': PARTITION:OFFSET of the dead-letter topic is needed, such as 0:17, "
            "as `headrace dead-letters list` shows it"
        )
    return Place(int(match[1]), int(match[2]))


def parse_offsets(text: str) -> tuple[int, int]:
    """Read A-B, the first and the last offset, or one."""
    match = _OFFSETS.fullmatch(text)
    if match is not None:
        first, last = int(match[1]), int(match[2] or match[1])
        if first <= last:
            return first, last
    raise ValueError(
        f"'{text}': A-B is needed, the first offset and the last, such as 40-90, or one"
    )


def parse_time(text: str, now_ms: int) -> int:
    """Read a moment: so long ago, milliseconds since 1970 (UTC), or a date by ISO 8601."""
    age = _AGE.fullmatch(text)
    if age is not None:
        return now_ms - int(age[1]) * _UNIT_MS[age[2]]
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"'{text}': allowed: an age (90s, 15m, 2h, 3d), a date and time as "
            "2026-11-23T10:15:00Z (UTC unless it says otherwise), or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _has_error(letter: Letter, text: str) -> bool:
    return letter.error_class == text or text.casefold() in letter.reason.casefold()
