"""What the scripts say where they cannot do their work, and what they leave: nothing."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.chart import ROOT
from tests.acceptance.processes import naming, until

pytestmark = pytest.mark.deep

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def said(script: str, *arguments: str, prefix: tuple[str, ...] = (), **environment: str) -> str:
    """What a script says that refuses; read from standard input, so that anybody can run it."""
    done = subprocess.run(
        [*prefix, "bash", "-s", *arguments],
        input=(ROOT / "deploy" / script).read_text(encoding="utf-8"),
        cwd="/",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("script", ["node.sh", "engine.sh", "image.sh"])
def test_who_is_not_root_is_told(script: str):
    prefix = NOBODY if os.geteuid() == 0 else ()
    assert "it needs root" in said(script, "images.tar", "true", prefix=prefix)


@pytest.mark.parametrize("script", ["node.sh", "engine.sh"])
def test_a_call_without_a_command_is_told(script: str):
    assert f"say {script} IMAGES COMMAND" in said(script)


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told of root first")
@pytest.mark.parametrize(
    ("script", "wanted"),
    [("node.sh", "run deploy/tools.sh cluster"), ("engine.sh", "run deploy/image.sh compose")],
)
def test_what_is_to_be_built_first_is_told(script: str, wanted: str, tmp_path: Path):
    engine = tmp_path / "engine/usr/sbin"
    engine.mkdir(parents=True)
    (engine / "dockerd").symlink_to("/bin/true")
    assert wanted in said(script, "images.tar", "true", HEADRACE_TOOLS=str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told of root first")
def test_a_node_that_is_told_to_end_leaves_neither_processes_nor_files(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kube").symlink_to("/bin/false")  # so it waits for an API server
    images = tmp_path / "images.tar"
    images.touch()
    node = subprocess.Popen(
        [ROOT / "deploy/node.sh", images, "true"],
        env={**os.environ, "HEADRACE_TOOLS": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )

    def folders() -> set[str]:
        lines = naming(str(images)).values()
        return {found[0] for line in lines if (found := re.findall(r"/\w+/node\.\w{6}", line))}

    try:
        until("it has a folder, and starts servers there", folders, 30)
        (folder,) = folders()
        until("containerd runs", lambda: naming(f"{folder}/containerd.sock") or
              (Path(folder) / "containerd.log").exists(), 30)  # fmt: skip
        node.terminate()
        assert node.wait(30) == 143
    finally:
        node.kill()
        node.wait()
    assert not Path(folder).exists()
    until("nothing runs", lambda: not naming(folder), 30)
