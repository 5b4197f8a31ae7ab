"""The word count example, on a few lines, without its servers."""

from collections import Counter
from typing import Any

from examples.word_count.__main__ import lines
from examples.word_count.pipeline import counted, topology
from headrace.sinks import SinkContext
from headrace.state import MemoryState
from headrace.testing import topology_test
from sinks.storage import Storage
from topology.sink import Batch
from topology.steps import SinkStep


def rows_of(*values: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """The words that are counted, and why lines were rejected."""
    with topology_test(topology) as kit:
        kit.send(*values)
        kit.advance(60)
        assert kit.unresolved == 0
        return kit.rows, [letter.reason for letter in kit.rejected]


def test_a_line_becomes_its_words_in_lower_case() -> None:
    topology.validate()
    assert topology.reliability == "exactly-once"
    rows, reasons = rows_of(b"Who counts? The miller's wheel...", b"", b"\xff")
    words = [row["word"] for row in rows]
    assert words == ["who", "counts", "the", "miller's", "wheel"]
    assert {row["length"] for row in rows} == {5}
    assert len(reasons) == 1
    assert reasons[0].startswith("not utf-8 text")


def test_state_counts_words_and_longest_lines() -> None:
    memory = MemoryState()
    made = counted(memory)
    (sink,) = (step.sink for step in made.steps() if isinstance(step, SinkStep))
    context = SinkContext("word-count", "word_counts", {}, Storage(""), None)
    sink.open(context)
    rows, _ = rows_of(b"round and round", b"and")
    sink.write(Batch(1, [rows], len(rows)))
    stored = memory.load(context, sink.shape)  # type: ignore[attr-defined]
    found = {row["word"]: (row["n"], row["longest_line"]) for row in stored.to_pylist()}
    assert found == {"round": (2, 3), "and": (2, 3)}


def test_published_lines_are_stable_and_some_are_broken() -> None:
    published = list(lines())
    assert published == list(lines())
    torn = Counter(value.startswith(b"\xff") for _, value in published)
    assert torn == {True: 5, False: 4_995}
