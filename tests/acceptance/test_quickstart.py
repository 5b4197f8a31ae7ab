"""The quickstart, as a newcomer follows it: its code, configuration and commands, in order.

By the wheel, in an empty folder, and so is a project that `headrace init` makes.
"""

import json
import os
import signal
import subprocess
import tomllib
import urllib.request
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.acceptance import evidence
from tests.docs.blocks import ROOT, blocks, commands
from tests.support.documented_commands import SECONDS, Follower
from tests.support.patience import seconds, until
from tests.support.wheel import environment_with_wheel

pytestmark = pytest.mark.acceptance

PAGE = ROOT / "docs/quickstart.md"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return environment_with_wheel(tmp_path_factory.mktemp("installed")).parent


@pytest.fixture
def newcomer(tmp_path, programs):
    def launch(words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        options["env"] = {**options["env"], "PATH": path}
        return subprocess.Popen([str(programs / words[0]), *words[1:]], **options)

    return Follower(tmp_path, launch)


def test_code_of_the_page_is_that_of_a_new_project(tmp_path, monkeypatch):
    _install, make, enter, *_ = commands(PAGE)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, make.split()[1:]).exit_code == 0
    project = tmp_path / enter.removeprefix("cd ")
    pipeline, tests = (block.text for block in blocks(PAGE, "python"))
    [config] = (block.text for block in blocks(PAGE, "toml"))
    assert (project / "pipeline.py").read_text() == pipeline
    assert (project / "service.toml").read_text().endswith(config)
    [_, *cases] = tests.split("\n\n\n")
    assert (project / "test_pipeline.py").read_text().endswith("\n\n\n".join(cases))


@pytest.mark.nightly
def test_the_quickstart_works_as_it_is_written(newcomer):
    """Two rows are in the table, one record was filtered, and one is a dead letter."""
    install, make, enter, graph, test, up, check, run, show, alone = commands(PAGE)
    assert install == 'pip install "headrace[delta,spark]" pytest'  # the wheel stands for it
    newcomer.give(make)
    newcomer.folder /= enter.removeprefix("cd ")
    assert "plausible" in newcomer.give(graph)
    assert "2 passed" in newcomer.give(test)

    servers = newcomer.start(up)
    try:
        until("it has told both addresses", lambda: "Ctrl-C" in servers.said, SECONDS,
              lambda: servers.errors)  # fmt: skip
        _run(newcomer, servers.said, check, run, show)
        servers.end(signal.SIGINT)
    finally:
        servers.process.kill()

    again = newcomer.give(f"{alone} --until-caught-up --json", HEADRACE_HTTP__PORT="0")
    account = json.loads(again.splitlines()[-1])
    assert (account["read"], account["unresolved"]) == (0, 0)  # all was read before
    assert sum(part["committed"] or 0 for part in account["partitions"].values()) == 4


def _run(newcomer: Follower, told: str, check: str, run: str, show: str) -> None:
    servers = tomllib.loads(told.split("\n\n", 1)[1].rpartition("\n\n")[0])
    kafka, zookeeper = servers["kafka"]["bootstrap.servers"], servers["zookeeper"]["hosts"]
    file = newcomer.folder / "service.toml"
    config = file.read_text().replace("127.0.0.1:9092", kafka)
    file.write_text(config.replace("127.0.0.1:2181", zookeeper), encoding="utf-8")
    assert "FAIL" not in newcomer.give(check)
    running = newcomer.serve(run)
    try:
        [producer] = (block.text for block in blocks(PAGE, "py"))
        exec(producer.replace("127.0.0.1:9092", kafka), {})  # noqa: S102
        until("two rows are written", lambda: len(_rows(newcomer)) == 2, SECONDS,
              lambda: running.errors)  # fmt: skip
        port = str(newcomer.ports[-1])
        until("all four are committed", lambda: _committed(newcomer, show, port) == 4, SECONDS)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/metrics", timeout=seconds(10)
        ) as answer:
            assert b"headrace_partition_committed_offset{" in answer.read()
        running.end(signal.SIGINT)
    finally:
        running.process.kill()
    assert sorted(row["celsius"] for row in _rows(newcomer)) == [19.5, 21.0]
    assert evidence.dead_letters(kafka, "readings.dead").total() == 1


def _rows(newcomer: Follower) -> list[dict[str, Any]]:
    table = newcomer.folder / "warehouse/readings"
    return [row for file in table.glob("*.parquet") for row in pq.read_table(file).to_pylist()]


def _committed(newcomer: Follower, show: str, port: str) -> int:
    assert "readings" in newcomer.give(show, HEADRACE_HTTP__PORT=port)
    facts = json.loads(newcomer.give(f"{show} --json", HEADRACE_HTTP__PORT=port))
    return sum(each["committed"] or 0 for each in facts["partitions"].values())
