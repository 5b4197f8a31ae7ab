"""An operator's way through docs/how-to/deploy-with-helm.md; run by test_node.py.

The page's commands are run as they stand, but for the names of what everybody has otherwise:
topology, image, and the servers' addresses. Kafka takes SCRAM by TLS only, ZooKeeper TLS.
"""

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from deploy.chart import CHART, ROOT
from service.devservers.process import HOST, free_ports
from tests.deploy.node_world import IMAGE, PIPELINE, SPACE, World, kubectl, opened, told
from tests.deploy.tools import TOOLS, manifests, tool
from tests.support.patience import seconds, until
from tests.support.secured_servers import SCRAM, Authority, GuardedKafka, GuardedZooKeeper, Way

pytestmark = [pytest.mark.deep, pytest.mark.timeout(460)]

PAGE = (ROOT / "docs/how-to/deploy-with-helm.md").read_text(encoding="utf-8")
PASSWORD = "canary-7d21"  # noqa: S105
_SECONDS = 120.0


def block(section: str, language: str, number: int = 0) -> str:
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return found[number]


def commands(section: str) -> list[str]:
    text = block(section, "console").replace("orders.flow:topology", "orders:topology")
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


class Secured(World):
    """What the page's values ask for, and a folder to work in."""

    reader = (("digest", f"orders:{PASSWORD}"),)  # what is written belongs to its user

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "open")
        self.desk = folder / "desk"
        here = f"IP:{self.address},IP:{HOST}"
        authority = Authority(self.desk, server=here, tls="DNS:client.example")
        way = Way("scram", SCRAM, authority.keys("server"))
        self.kafka = self.guarded = GuardedKafka(
            folder / "kafka", way, address=self.address, properties={}
        )
        self.zookeeper = self.by_tls = GuardedZooKeeper(folder / "zookeeper", authority)
        # No line feed: it would be part of the password.
        (self.desk / "password.txt").write_text(PASSWORD, encoding="ascii")
        (self.desk / "helm").mkdir()
        (self.desk / CHART).symlink_to(ROOT / CHART)
        programs = self.desk / "bin"
        programs.mkdir()
        (programs / "helm").symlink_to(tool("helm"))
        (programs / "kubectl").write_text(f'#!/bin/sh\nexec {TOOLS}/bin/kube kubectl "$@"\n')
        (programs / "kubectl").chmod(0o755)

    def open(self) -> None:
        super().open()
        self.guarded.admit(PASSWORD)

    def write_values(self) -> None:
        """The page's values into orders.yaml, with the names of this world."""
        (values,) = manifests(block("Values", "yaml"))
        assert values["kafka"]["existingSecret"] == "orders-kafka"
        values |= {"topology": "orders:topology", "image": dict(IMAGE)}
        values["pipeline"] = {"files": {"orders.py": PIPELINE}}
        values["config"]["kafka"]["bootstrap.servers"] = self.guarded.at("scram")
        values["config"]["zookeeper"]["hosts"] = f"{self.address}:{self.by_tls.tls_port}"
        (self.desk / "orders.yaml").write_text(json.dumps(values), encoding="utf-8")

    def follow(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.desk,
            env={**os.environ, "PATH": f"{self.desk / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds(400),
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{told()}"
        assert PASSWORD not in done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("node"), Secured) as made:
        yield made


def test_secrets_are_made_as_the_page_says(world):
    lines = commands("Values")
    assert len(lines) > 2
    for line in lines:
        world.follow(line)


def test_what_is_installed_with_them_gets_ready_and_works(world):
    world.write_values()
    install, check, status, *_ = commands("Install, look, change")
    said = world.follow(install)
    world.more_come()
    assert "helm test orders --namespace pipelines" in said
    assert "Phase:          Succeeded" in world.follow(check)
    shown = world.follow(status)
    assert "replicas 3, partitions 6" in shown


def test_the_notes_tell_how_to_ask_for_health(world):
    notes = world.follow(f"helm get notes orders --namespace {SPACE}")
    (line,) = re.findall(r"^  (kubectl port-forward .*)$", notes, re.MULTILINE)
    (port,) = free_ports(1)
    forwarding = subprocess.Popen(
        [world.desk / "bin/kubectl", *re.sub(r" (\d+)$", rf" {port}:\1", line).split()[1:]],
        stdout=subprocess.DEVNULL,
    )
    try:
        until("it is forwarded", lambda: _answer(f"http://127.0.0.1:{port}/health/ready"), 60)
        answer = _answer(f"http://127.0.0.1:{port}/health/ready")
    finally:
        forwarding.kill()
        forwarding.wait()
    assert answer["ok"] is True, answer


def test_a_secret_is_written_into_no_manifest(world):
    shown = world.follow(f"helm get manifest orders --namespace {SPACE}")
    assert "orders-kafka" in shown
    kept = kubectl("get", "configmaps,statefulsets,pods", "--output=json")
    assert PASSWORD not in kept


def test_it_is_changed_back_and_removed_as_the_page_says(world):
    *_, upgrade, rollback, uninstall = commands("Install, look, change")
    assert "upgrade" in upgrade
    assert "rollback" in rollback
    assert "uninstall" in uninstall
    world.follow(upgrade)
    world.follow(rollback)
    world.more_come()
    world.follow("kubectl rollout restart statefulset orders-headrace --namespace pipelines")
    world.follow("kubectl rollout status statefulset orders-headrace --namespace pipelines")
    world.more_come()
    world.account_closes()
    world.follow(uninstall)
    gone = ("get", "pods", "--selector=app.kubernetes.io/component=replica", "--output=name")
    until("no pod is left", lambda: not kubectl(*gone), _SECONDS, told)


def _answer(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=seconds(5)) as reply:  # noqa: S310
            found: dict[str, Any] = json.load(reply)
    except OSError:
        return {}
    return found
