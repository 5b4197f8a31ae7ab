"""Suite tables-growth: what is measured how often, and held against which goals."""

import json
from types import SimpleNamespace

from benchmarks import tables_growth, tables_growth_variants
from benchmarks.delays import first_visible
from benchmarks.job import Job
from benchmarks.options import Options
from benchmarks.tables_growth_variants import VARIANTS

FIGURES = {
    "writers": {"commits_per_second": 15.9, "p50_ms": 30.0, "p99_ms": 1_200.0},
    "pipeline": {"rows": 11, "whole_seconds": 9.0, "peak_mb": 313.0, "first_row_seconds": 2.5},
}


class Growing:
    """A bench that measures nothing: a commit takes a millisecond for each thousand files."""

    options = Options()
    progress = SimpleNamespace(step=lambda *_told: None)

    def __init__(self):
        self.asked = []

    def publish(self, topic, value_of, records):
        pass

    def run(self, module, variant, topic, records, *, options):
        self.asked.append((variant, records))
        found = FIGURES.get(variant) or {"commit_ms": options["files"] / 1000}
        return {"records": records, **found}


def test_every_figure_stands_with_its_spread_and_goal():
    bench = Growing()
    facts = tables_growth.run(bench).json
    assert facts["commit_ms"] == {
        "100": 0.1, "10000": 10.0, "100000": 100.0, "10000_bounded": 10.0
    }  # fmt: skip
    assert facts["peak_mb"] == 313.0
    assert facts["spread"]["peak_mb"] == [313.0, 313.0]
    assert facts["spread"]["commit_ms_100000"] == [100.0, 100.0]
    assert [name for name, goal in facts["goals"].items() if not goal["met"]] == [
        "writers: p99, ms"
    ]
    assert {variant for variant, _ in bench.asked} == set(VARIANTS)
    assert bench.asked.count(("writers", 16 * tables_growth.SECONDS)) == tables_growth.ROUNDS
    json.dumps(facts)


def job(records, **options):
    return Job("m", "v", "nowhere", "nowhere", "t", records, "p", options=options)


def test_commits_go_into_a_table_that_has_as_many_files_as_was_asked(monkeypatch):
    counted = []
    committed = tables_growth_variants._committed

    def counting(sink, staged):
        counted.append(len(sink.data_files()))
        return committed(sink, staged)

    monkeypatch.setattr(tables_growth_variants, "_committed", counting)
    found = VARIANTS["commits"](job(3, files=100))
    assert found["commit_ms"] > 0
    assert counted == [101, 102, 103]


def test_a_row_can_be_read_when_the_first_entry_that_adds_a_file_is_there(tmp_path):
    log = tmp_path / "_delta_log"
    log.mkdir()
    for version, text in enumerate(('{"metaData":{}}', '{"add":{"path":"a"}}', '{"add":{}}')):
        (log / f"{version:020d}.json").write_text(text)
    entry = log / f"{1:020d}.json"
    assert first_visible(tmp_path) == entry.stat().st_mtime_ns / 1e6
