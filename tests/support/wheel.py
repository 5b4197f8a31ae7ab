"""The wheel, built and installed: what somebody has who has no clone."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.support.patience import seconds
from tests.support.without import ROOT

SITE = Path(sysconfig.get_path("purelib"))


def environment_with_wheel(folder: Path, *absent: str) -> Path:
    """Build the wheel and return the Python of a new environment in `folder` that has it.

    What the wheel depends on is linked from the environment of the tests, without the
    packages in `absent`, and without what type checkers would find there beside it.
    """
    _call(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder))
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env/bin/python"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel))
    _call(sys.executable, "-m", "pip", "--python", str(python), *install)
    (folder / "packages").mkdir()
    for entry in SITE.iterdir():
        if not entry.name.startswith(("headrace", "_editable", *absent)):
            (folder / "packages" / entry.name).symlink_to(entry)
    site = python.parents[1] / SITE.relative_to(sys.prefix)
    (site / "packages.pth").write_text(f"{folder / 'packages'}\n")
    return python


def without_clone() -> dict[str, str]:
    """Return the variables of a shell in which no path leads to the clone."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}


def _call(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=seconds(120))
