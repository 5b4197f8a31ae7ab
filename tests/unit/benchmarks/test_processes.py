"""The processor time of a tree of processes, as /proc tells it."""

import subprocess
import sys

import pytest

from benchmarks.processes import Process, parse, tree, tree_seconds
from tests.support.patience import Limit

BUSY = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def process(pid, parent, session):
    return Process(pid, parent, session, 1.0)


def test_a_line_is_read_whatever_the_process_is_called():
    line = "7 (a) b (c) S 3 7 5 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 9 0 1 2 3"
    assert parse(line) == Process(7, 3, 5, pytest.approx(1.24))


def test_children_and_theirs_belong_to_the_tree_and_nobody_else():
    all_of_them = [process(1, 0, 1), process(10, 1, 1), process(11, 10, 1), process(12, 11, 1),
                   process(13, 1, 1)]  # fmt: skip
    assert [each.pid for each in tree(all_of_them, 10)] == [10, 11, 12]


def test_a_session_of_a_descendant_belongs_to_the_tree_though_its_parent_has_ended():
    jvm, orphan, sibling = process(20, 10, 20), process(30, 1, 20), process(40, 1, 1)
    found = tree([process(10, 1, 1), jvm, orphan, sibling], 10)
    assert [each.pid for each in found] == [10, 20, 30]


def test_a_root_that_is_gone_has_no_tree():
    assert tree([process(1, 0, 1)], 2) == []


def test_what_a_child_takes_counts_while_it_runs_and_when_it_has_ended():
    before = tree_seconds()
    with subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) as child:
        deadline = Limit(30)
        while child.poll() is None and tree_seconds() - before < 0.1:
            assert not deadline.passed
        child.wait()
    assert tree_seconds() - before >= 0.3
