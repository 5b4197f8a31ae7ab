"""`python -m benchmarks all`."""

import json
import sys

from benchmarks import __main__ as benchmarks


def test_all_suites_end_with_their_figures_as_one_json_object(monkeypatch, capsys):
    monkeypatch.setattr(benchmarks, "SUITES", {"acker": benchmarks.SUITES["acker"]})
    words = ["benchmarks", "all", "--rounds", "1", "--trees", "800", "--in-flight", "5000"]
    monkeypatch.setattr(sys, "argv", words)
    assert benchmarks.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["suite"] == "all"
    assert [facts["suite"] for facts in found["suites"]] == ["acker"]
