import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from partition.replicas.balance import Note
from service.cli import main as main_module
from tests.support import commands

NOTE = Note("op@shell", "replay a day", 1_800_000_000_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Let nothing wait for what nobody sends, nor long before it tries again."""
    monkeypatch.setattr("service.pipeline.loop._IDLE_SECONDS", 0.001)
    monkeypatch.setattr("service.observability.http_server._CHECK_SECONDS", 0.01)
    monkeypatch.setattr("transactions.groups._FIRST_PAUSE_SECONDS", 0.05)


@pytest.fixture
def headrace(monkeypatch, capsys):
    """Run a command line; return its exit code, standard output and error."""

    def headrace(*words):
        monkeypatch.setattr(sys, "argv", ["headrace", *words])
        code = main_module.main()
        return code, *capsys.readouterr()

    monkeypatch.setenv("COLUMNS", "200")
    return headrace


@pytest.fixture
def service_toml(tmp_path):
    path = tmp_path / "service.toml"
    path.write_text(
        '[kafka]\n"bootstrap.servers" = "-"\n[zookeeper]\nhosts = "-"\n'
        '[pipeline]\nname = "tables"\n[storage]\nwarehouse = "/tables"\n'
    )
    return path


@pytest.fixture
def operated(headrace, service_toml, monkeypatch):
    """`operated(nodes, topology, **parts)` returns `headrace` for a pipeline in memory."""

    def operated(nodes, topology, **parts):
        monkeypatch.setattr(commands, "topology", topology)
        for module in ("control", "status", "offsets"):
            monkeypatch.setattr(f"service.cli.{module}.replica_nodes", nodes.opened)
        monkeypatch.setattr("service.cli.common.signed", lambda why: replace(NOTE, why=why))

        def wire(_topology, config):
            return SimpleNamespace(
                name="tables", topology=topology, config=config, spark=None, **parts
            )

        monkeypatch.setattr("service.wiring.wire", wire)

        def given(*words):
            return headrace(*words, "--config", str(service_toml))

        return given

    return operated


def facts_of(out):
    return json.loads(out.splitlines()[-1])


def words_of(text):
    """Return a text without frames and line breaks."""
    return " ".join(text.translate(str.maketrans("│╭╮╰╯─", "      ")).split())


def cells_of(text):
    """Return the cells of the rows of tables, without those of headers."""
    rows = [[each.strip() for each in line.split("│")[1:-1]] for line in text.splitlines()]
    return [row for row in rows if row]
