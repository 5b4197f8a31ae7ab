"""The quickstart, as a newcomer follows it: its code, configuration and commands, in order."""

import json
import os
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.acceptance import evidence
from tests.docs.blocks import ROOT, blocks, commands
from tests.support.documented_commands import SECONDS, Follower, Given
from tests.support.patience import seconds, until

pytestmark = pytest.mark.acceptance

PAGE = ROOT / "docs/quickstart.md"
BIN = Path(sys.executable).parent  # `source .venv/bin/activate` puts it first


def _launch(words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
    options["env"] = {**options["env"], "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.Popen([str(BIN / words[0]), *words[1:]], **options)


@pytest.fixture
def newcomer(tmp_path: Path) -> Follower:
    return Follower(tmp_path, _launch)


@pytest.fixture
def servers(newcomer: Follower) -> Iterator[Given]:
    """What `headrace dev up` starts, once it has said where they are."""
    started = newcomer.start("headrace dev up --topic readings")
    try:
        until("it has told both addresses", lambda: "Ctrl-C" in started.said, SECONDS,
              lambda: started.errors)  # fmt: skip
        yield started
        started.end(signal.SIGINT)
    finally:
        started.process.kill()


def test_the_quickstart_works_as_it_is_written(newcomer, servers):
    """Two rows are in the table, one record was filtered, and one is a dead letter."""
    make, graph, up, check, run, show = commands(PAGE)
    assert (make, up) == ("make run", servers.command)
    topology, _tests = (block.text for block in blocks(PAGE, "python"))
    [producer] = (block.text for block in blocks(PAGE, "py"))
    [config] = (block.text for block in blocks(PAGE, "toml"))
    (newcomer.folder / "readings.py").write_text(topology, encoding="utf-8")
    assert "plausible" in newcomer.give(graph)

    told = tomllib.loads(servers.said.split("\n\n", 1)[1].rpartition("\n\n")[0])
    kafka, zookeeper = told["kafka"]["bootstrap.servers"], told["zookeeper"]["hosts"]
    config = config.replace("127.0.0.1:9092", kafka).replace("127.0.0.1:2181", zookeeper)
    (newcomer.folder / "service.toml").write_text(config, encoding="utf-8")
    assert "FAIL" not in newcomer.give(check)
    running = newcomer.serve(run)
    try:
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
