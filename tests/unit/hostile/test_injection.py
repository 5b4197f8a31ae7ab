import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.common import describe
from service.config.settings import load
from service.errors import BadConfig
from sinks.tables.partitioning import _folder
from tests.support.python import run_python
from topology.topology import can_name_offsets

FORGED = '\n{"event":"forged","level":"critical"}\r\n\x1b[2J\x1b]0;owned\x07\u2028\u202e\x00\x85end'
WALKS = [
    "..", "../x", "a/../../x", "/a/../b", "a//b", "a/./b", ".", "", "a\0b", "a\nb",
    "\x1b[31m", "\ud800",
]  # fmt: skip


def logged(form):
    code = f"""
        import structlog
        from service.observability import logs
        logs.configure("info", {form!r})
        log = structlog.get_logger()
        text = {FORGED!r}
        log.warning("step_failing", error=text, step=text, deep={{"a": [text]}})
        log.info("library", **{{"key": text}})
        try:
            raise ValueError(text)
        except ValueError as error:
            log.exception("loop_failed", error=error)
    """
    return run_python(code).stderr


def test_a_text_is_part_of_one_line_of_json_and_forges_no_other():
    lines = [json.loads(line) for line in logged("json").split("\n") if line]
    assert [line["event"] for line in lines] == ["step_failing", "library", "loop_failed"]
    assert lines[0]["error"] == FORGED


def test_a_text_is_no_command_to_a_terminal():
    printed = logged("console")
    assert printed.replace("\n", "").isprintable()
    assert printed.split("\n")[0].count("forged") == 3
    assert "forged" in printed.split("\n")[1]


def test_an_error_is_one_printable_line():
    line = describe(ValueError(FORGED))
    assert line.isprintable()
    assert "forged" in line


@pytest.mark.parametrize("name", WALKS, ids=repr)
def test_no_name_leaves_its_node(name):
    assert not all(map(can_name_offsets, name.split("/")))
    root = name if name[:1] == "/" else f"/{name}"
    assert_refused("root", zookeeper={"hosts": "b:2", "root": root})
    if name:
        assert_refused("pipeline", pipeline={"name": name})


@pytest.mark.parametrize("name", ["..", "a/b", "a b", "", "a\0", "ü", "x" * 201], ids=repr)
def test_a_replica_has_a_name_that_is_one_node(name):
    assert_refused("replicas", replicas={"name": name})


def assert_refused(key, **tables):
    with pytest.raises(BadConfig, match=key):
        load(None, {**SERVERS, **tables})


SERVERS = {"kafka": {"bootstrap.servers": "a:1"}, "zookeeper": {"hosts": "b:2"}}


@given(st.text(), st.text(min_size=1))
def test_no_value_of_a_record_makes_its_folder_another_one(value, column):
    folder = _folder(column, value)
    assert "/" not in folder
    assert "\0" not in folder
    assert folder not in ("", ".", "..")
    assert len(folder.encode()) <= 255
