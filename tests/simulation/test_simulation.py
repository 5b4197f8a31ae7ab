"""A short run of the simulator; `make simulate` is the long one."""

import json

import pytest

from tests.simulation.__main__ import main
from tests.simulation.every_mutant import kill, killer
from tests.simulation.life import Life
from tests.simulation.mutants import MUTANTS, mutated, put
from tests.simulation.tape import events, run, shrink


def test_a_few_seeds_keep_every_promise():
    """Promises 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and 16: checked at every step."""
    for seed in range(6):  # three of them run exactly once, one of these on the spark engine
        ended = run(seed, list(events(seed, 1500)))
        assert ended.violation is None, f"seed {seed}, step {ended.at}: {ended.violation}"


def test_when_the_faults_stop_a_fresh_record_of_every_partition_gets_through():
    """Promise 15: nothing stays stuck, and nothing is left unresolved."""
    ended = run(7, list(events(7, 1500)))
    assert ended.violation is None
    assert ended.steps > 1500  # healing is part of the run


def test_the_same_seed_gives_the_same_run():
    once, again = (run(11, list(events(11, 1500))) for _ in range(2))
    assert (once.state, once.steps, once.situations) == (again.state, again.steps, again.situations)


def test_a_part_of_a_tape_is_a_tape():
    tape = list(events(12, 900))
    assert run(12, tape[100:700:2]).violation is None


def test_a_mutant_is_killed_and_its_tape_shrunk():
    ended, _steps = killer("no_cas_on_commit", length=1500, seeds=10)
    assert ended is not None
    assert ended.violation is not None
    tape = list(events(ended.seed, 1500))
    with mutated("no_cas_on_commit"):
        short = shrink(ended.seed, tape, ended.violation, at=ended.at, seconds=6).tape
        again = run(ended.seed, short).violation
    assert len(short) < len(tape) / 4
    assert again is not None
    assert again.promise == ended.violation.promise
    assert run(ended.seed, short).violation is None  # it is the mutant's fault


@pytest.mark.parametrize(
    "name",
    ["lower_txid_skipped", "commit_out_of_order", "ranges_not_persisted", "attempt_forgotten"],
)
def test_a_fault_in_the_order_of_transactions_is_found(name):
    ended, _steps = killer(name, length=2500, seeds=60)
    assert ended is not None
    assert ended.violation is not None
    assert ended.violation.promise == 14


@pytest.mark.parametrize(
    "name",
    [
        "committed_before_its_seal_is_stored",
        "group_committed_out_of_order",
        "run_before_it_is_stored",
        "seal_not_compared",
    ],
)
def test_a_fault_in_the_spark_engines_transactions_is_found(name):
    ended, _steps = killer(name, length=4000, seeds=60)
    assert ended is not None
    assert ended.violation is not None
    assert ended.violation.promise == 14


@pytest.mark.parametrize(
    ("name", "promises"),
    [
        pytest.param("lost_spool_is_empty", {3}, marks=pytest.mark.slow),
        ("refusal_of_another_record", {13, 15}),  # 15: no letter fits, so its partition stands
        ("refused_row_without_a_letter", {13}),
        ("spool_of_another_sink", {14}),
    ],
)
def test_a_fault_in_what_the_spark_engines_driver_stages_is_found(name, promises):
    ended, _steps = killer(name, length=4000, seeds=300)
    assert ended is not None
    assert ended.violation is not None
    assert ended.violation.promise in promises


def test_a_mutant_that_only_crashes_is_not_killed(monkeypatch, capsys):
    def crashes():
        return [put(Life, "do_commit", lambda _life, _dice, _more: None)]

    monkeypatch.setitem(MUTANTS, "crashes", crashes)
    assert kill("crashes").has_crashed
    assert main(["--mutant", "crashes"]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("crashed, and so not killed: crashes")
    told = json.loads(last)
    assert (told["mutants"], told["killed"], told["crashed"]) == (1, 0, 1)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [("20", "seed 0, as short as it gets"), ("0", "seed 0, shrinking stopped after 0 s")],
)
def test_a_broken_promise_is_told_with_its_seed_and_a_tape(capsys, tmp_path, seconds, told):
    with mutated("commit_of_what_is_fetched"):
        code = main(["--seeds", "1", "--no-mutants", "--shrink-seconds", seconds])
        lines = capsys.readouterr().out.splitlines()
        assert code == 1
        assert lines[0].startswith("seed 0, step ")
        place = next(place for place, line in enumerate(lines) if line.startswith(told))
        tape = tmp_path / "tape.json"
        tape.write_text(lines[place + 1])
        assert main(["--seed", "0", "--tape", str(tape)]) == 1  # it breaks by itself
    assert json.loads(lines[-1])["violations"] == 1
