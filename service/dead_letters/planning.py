"""Which letters are meant, and what may be done with each of them; reads, and writes nothing."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.dead_letters.judging import Row, Wish, judge_drop, judge_replay, without_twins
from service.dead_letters.letter import Content, Letter, Notice, Place, Reference
from service.dead_letters.marks import Mark, Marks
from service.dead_letters.selection import NO_FILTERS, Filters
from service.dead_letters.topic import Extent, LetterTopic


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters that are meant: those at the places, or else those that fit the filters.

    Without a filter for it, a letter must be of this pipeline, or not say of which it is.
    """

    pipeline: str
    filters: Filters = NO_FILTERS
    places: tuple[Place, ...] = ()
    all: bool = False  # also those that are dealt with

    def is_own(self, letter: Letter) -> bool:
        """Whether it is of the pipeline that is looked after."""
        return self.filters.pipeline is not None or letter.pipeline in (None, self.pipeline)


@dataclass(slots=True)
class Passed:
    """What was read and not selected, by reason."""

    dealt_with: int = 0
    of_others: int = 0  # of other pipelines
    notices: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The topic at one moment: how far it reached, and what was done with letters until then."""

    topic: LetterTopic
    extent: Extent
    marks: Marks

    def selected(
        self, selection: Selection, passed: Passed
    ) -> Iterator[tuple[Letter, Sequence[Mark]]]:
        """Every letter that is meant, with its marks, in order. Raises NoSuchLetter."""
        if selection.places:
            left = set(selection.places)
            for letter in self.topic.some(self.extent, left):
                left.discard(letter.place)
                yield letter, self.marks.of(letter.place)
            if left:
                self.topic.explain(self.extent, min(left))
            return
        for found in self.topic.read(self.extent):
            if isinstance(found, Notice):
                passed.notices += 1
            elif not isinstance(found, Letter):
                passed.unreadable += 1
            elif not selection.is_own(found):
                passed.of_others += 1
            elif selection.filters.fit(found):
                marks = self.marks.of(found.place)
                if marks and not selection.all:
                    passed.dealt_with += 1
                else:
                    yield found, marks


def look(topic: LetterTopic) -> View:
    """Read how far the topic reaches, and the marks up to there."""
    extent = topic.extent()
    return View(topic, extent, topic.marks(extent))


def plan_replay(view: View, selection: Selection, wish: Wish) -> list[Row]:
    """Judge each letter that is meant; one whose value is to be had nowhere is refused."""
    topics: dict[str, tuple[int, ...]] = {}
    rows = []
    for letter, marks in view.selected(selection, Passed()):
        name = wish.to or letter.read.topic
        if name not in topics:
            topics[name] = view.topic.partitions(name)
        row = judge_replay(letter, marks, wish, topics)
        if row.outcome == "to_replay":
            content = content_to_send(view.topic, letter)
            if isinstance(content, str):
                row = row.become("refused", content)
        rows.append(row)
    return without_twins(rows)


def plan_drop(view: View, selection: Selection) -> list[Row]:
    """Judge each letter that is meant."""
    return [judge_drop(letter, marks) for letter, marks in view.selected(selection, Passed())]


def content_to_send(topic: LetterTopic, letter: Letter) -> Content | str:
    """What of a letter is sent again, read from its own topic if need be; or why there is none."""
    if letter.content is None:
        raise AssertionError(letter.place)
    if letter.reference is None:
        return letter.content
    found = topic.record(letter.read)
    key = letter.key_reference
    left_out = f"its key ({key.size:,} bytes) and value" if key else "its value"
    without = f"the letter is without {left_out}, {letter.reference.size:,} bytes of {letter.read}"
    if isinstance(found, str):
        return f"{without}; {found}"
    if not _is_of(letter.reference, found.value) or (key and not _is_of(key, found.key)):
        return f"{without}; another record stands there now"
    return found


def _is_of(reference: Reference, content: bytes | None) -> bool:
    return hashlib.sha256(content or b"").hexdigest() == reference.sha256
