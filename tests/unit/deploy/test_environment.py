import subprocess
import sys

from deploy.chart import ROOT

PIP = """#!/bin/sh
case "$*" in
  *--editable*) echo "Installing collected packages: headrace" ;;
  *--config-settings=--build-option=--compression=stored*)
    while [ "$1" != -r ]; do shift; done; cp "$2" heavy.lock
    echo "  Downloading https://host/pyspark-4.1.4.tar.gz (434.3 MB)"
    echo "  Building wheel for pyspark (pyproject.toml): started"
    echo "Installing collected packages: py4j, pyspark"
    [ -z "$DIES" ] || kill -9 $$ ;;
  *) while [ "$1" != -r ]; do shift; done; cp "$2" light.lock
    echo "  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)"
    echo "Installing collected packages: a, b, c"; echo "no room" >&2; exit $FAILS ;;
esac
"""


def environment(folder, *, fails=0, dies="", java="here"):
    """Run the script with a pip that only prints, without uv."""
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP, encoding="utf-8")
    python.chmod(0o755)
    pip = folder / ".venv/lib/python3/site-packages/pip/__init__.py"
    pip.parent.mkdir(parents=True)
    pip.touch()
    (folder / "all.lock").write_text(
        "a==1 \\\n    --hash=sha256:1\npy4j==2 \\\n    --hash=sha256:2\n"
        "pyspark==3 \\\n    --hash=sha256:3\nz==4 \\\n    --hash=sha256:4\n",
        encoding="utf-8",
    )
    ran = subprocess.run(
        [sys.executable, ROOT / "deploy/environment.py", ".venv", "all.lock"],
        env={
            "PATH": "/bin:/usr/bin" if java else "", "JAVA_HOME": java, "FAILS": str(fails),
            "DIES": dies,
        },
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stderr


def test_pyspark_is_installed_beside_the_rest_and_what_takes_time_is_said(tmp_path):
    code, said = environment(tmp_path)
    assert code == 0, said
    texts = [line.split(" s  ")[1] for line in said.splitlines()]
    assert texts[0] == "installing 4 packages with pip"
    assert texts[-2:] == ["installing headrace", "the environment is ready"]
    assert set(texts[1:-2]) == {
        "downloading pyspark (434 MB)", "building pyspark", "installing pyspark",
        "installing 3 packages",
    }  # fmt: skip
    assert (tmp_path / "heavy.lock").read_text().count("==") == 2
    assert "a==1" in (tmp_path / "light.lock").read_text()
    assert "pyspark" not in (tmp_path / "light.lock").read_text()


def test_a_failed_installation_ends_with_the_code_and_the_last_lines_of_pip(tmp_path):
    code, said = environment(tmp_path, fails=3)
    assert code == 3
    assert "no room" in said
    assert "ready" not in said


def test_a_pip_that_is_killed_is_no_success(tmp_path):
    code, said = environment(tmp_path, dies="yes")
    assert code
    assert "ready" not in said


def test_a_machine_without_java_is_told_what_it_needs(tmp_path):
    assert environment(tmp_path, java="") == (
        1,
        "headrace needs Java 17 or newer on PATH or in JAVA_HOME\n",
    )
