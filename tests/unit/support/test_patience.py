"""Waits that guard against a hang grow with how busy the machine is."""

import ast
import re
from pathlib import Path

import pytest

from tests.support import patience
from tests.support.patience import Limit, seconds, until

TESTS = Path(__file__).parents[2]
BLOCKING = {"wait", "join", "result", "exception"}  # take a time-out as their only argument
WITH_NUMBER = re.compile(rf"(timeout\s*=|\.({'|'.join(BLOCKING)})\s*\()[\s(]*[\d.]")
# The acceptance tests' own waits are scaled within; a session ends by the server's clock.
SCALED = {"run.wait", "a.wait", "self.wait", "KazooClient"}
SHORT_SECONDS = 5.0  # shorter ones are pauses, or end by design


@pytest.fixture
def machine(monkeypatch):
    """A clock, and how slow the machine is, to be set."""

    class Machine:
        now = 0.0
        slowness = 1.0

        def turn(self) -> None:
            self.now += 1.0

    made = Machine()
    monkeypatch.setattr(patience.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(patience, "factor", lambda: made.slowness)
    return made


def test_time_out_is_longer_on_a_slow_machine(machine):
    idle = seconds(10)
    machine.slowness = 4.0
    assert seconds(10) == 4 * idle
    assert seconds(idle) == idle, "it is scaled once"


def test_limit_counts_time_by_the_load_at_that_moment(machine):
    idle = seconds(10)
    limit = Limit(10)
    machine.now += idle - 1
    assert not limit.passed
    machine.slowness = 4.0
    machine.now += 3.5
    assert not limit.passed
    machine.now += 1.0
    assert limit.passed


def test_until_fails_when_the_limit_has_passed(machine):
    with pytest.raises(AssertionError, match=r"not within 10 s: rain\nno cloud"):
        until("rain", lambda: False, 10, lambda: "no cloud", machine.turn)
    assert machine.now > 10
    until("it is late", lambda: machine.now > 10)


def test_factor_is_at_least_one():
    assert patience.factor() >= 1.0


def bare_time_outs(tree: ast.AST):
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        given = [each.value for each in call.keywords if each.arg == "timeout"]
        if isinstance(call.func, ast.Attribute) and call.func.attr in BLOCKING:
            given += call.args[:1] if len(call.args) == 1 else []
        for each in given:
            if isinstance(each, ast.Constant) and isinstance(each.value, int | float):
                yield call, each.value


def test_no_test_waits_with_a_limit_for_an_idle_machine():
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}
    found = [
        f"{path.relative_to(TESTS)}:{call.lineno}"
        for path, text in texts.items()
        if WITH_NUMBER.search(text)
        for call, value in bare_time_outs(ast.parse(text))
        if value >= SHORT_SECONDS and ast.unparse(call.func) not in SCALED
    ]
    assert found == []
