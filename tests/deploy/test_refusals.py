"""What the scripts say where they cannot do their work, and what they leave: nothing."""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy.chart import ROOT
from tests.acceptance.processes import naming
from tests.support.patience import seconds, until

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
        timeout=seconds(60),
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("script", ["node.sh", "engine.sh", "image.sh"])
def test_who_is_not_root_is_told(script):
    prefix = NOBODY if os.geteuid() == 0 else ()
    assert "it needs root" in said(script, "images.tar", "true", prefix=prefix)


@pytest.mark.parametrize("script", ["node.sh", "engine.sh"])
def test_a_call_without_a_command_is_told(script):
    assert f"say {script} IMAGES COMMAND" in said(script)


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told of root first")
@pytest.mark.parametrize(
    ("script", "wanted"),
    [("node.sh", "run deploy/tools.sh cluster"), ("engine.sh", "run deploy/image.sh compose")],
)
def test_what_is_to_be_built_first_is_told(script, wanted, tmp_path):
    engine = tmp_path / "engine/usr/sbin"
    engine.mkdir(parents=True)
    (engine / "dockerd").symlink_to("/bin/true")
    assert wanted in said(script, "images.tar", "true", HEADRACE_TOOLS=str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told of root first")
def test_ended_node_leaves_no_processes_or_files(tmp_path):
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
        assert node.wait(seconds(30)) == 143
    finally:
        node.kill()
        node.wait()
    assert not Path(folder).exists()
    until("nothing runs", lambda: not naming(folder), 30)


def packed(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def image_of_nothing() -> bytes:
    """An archive of the image `nothing:dev`, which has one empty file."""
    layer = packed({"nothing": b""})
    layers = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": layers}
    image = {"Config": "config.json", "RepoTags": ["nothing:dev"], "Layers": ["layer.tar"]}
    named = {"manifest.json": json.dumps([image]), "config.json": json.dumps(config)}
    return packed({name: text.encode() for name, text in named.items()} | {"layer.tar": layer})


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told of root first")
def test_ended_engine_leaves_no_containers_or_files(tmp_path):
    images = tmp_path / "images.tar"
    images.write_bytes(image_of_nothing())
    started = tmp_path / "started"
    mounts = " ".join(f"--volume /{each}:/{each}:ro" for each in ("usr", "lib", "lib64"))
    contained = f"docker run --detach --network none {mounts} nothing:dev /usr/bin/sleep 1000"
    runs = f'{contained} && {contained} && echo "$DOCKER_HOST" >{started}.new'
    engine = subprocess.Popen(
        [ROOT / "deploy/engine.sh", images, "bash", "-c",
         f"{runs} && mv {started}.new {started} && sleep 1000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        until("containers run", lambda: started.exists() or engine.poll() is not None, 120)
        assert engine.poll() is None, engine.communicate()
        folder = Path(started.read_text(encoding="utf-8").strip().removeprefix("unix://")).parent
        assert [*Path("/sys/fs/cgroup").glob(f"*/{folder.name}")]
        engine.terminate()
        assert engine.wait(seconds(60)) == 143
    finally:
        engine.kill()
        engine.communicate()
    assert not folder.exists()
    assert not [*Path("/sys/fs/cgroup").glob(f"*/{folder.name}")]
    until("nothing runs", lambda: not naming(str(folder)), 30)
