"""A folder named like one of our rooms must fail clearly, and at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import _shadow
from tests.support.patience import seconds

HOME = Path(_shadow.__file__).resolve().parent.parent


def python(folder: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in `folder`, which is first on the path as it is for `python -c`."""
    known = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env={**known, **environment}, capture_output=True, text=True, check=False,
        timeout=seconds(60),
    )  # fmt: skip


@pytest.mark.parametrize("room", _shadow.ROOMS)
def test_a_foreign_package_of_a_room_s_name_is_named_with_both_places(room, tmp_path):
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").write_text("print('imported')\n")
    done = python(tmp_path, "import headrace")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: package '{room}' of Headrace is at {HOME / room}")
    assert str(tmp_path / room) in last
    assert "PYTHONSAFEPATH=1" in last
    assert "imported" not in done.stdout


def test_a_foreign_module_of_a_room_s_name_is_found_too(tmp_path):
    (tmp_path / "sinks.py").write_text("print('imported')\n")
    done = python(tmp_path, "import headrace")
    assert done.returncode == 1
    assert "package 'sinks' of Headrace" in done.stderr
    assert "imported" not in done.stdout


def test_an_empty_folder_of_a_room_s_name_is_no_trouble(tmp_path):
    (tmp_path / "service").mkdir()
    assert python(tmp_path, "import headrace").returncode == 0


def test_a_safe_path_lets_our_rooms_win(tmp_path):
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("")
    assert python(tmp_path, "import headrace", PYTHONSAFEPATH="1").returncode == 0


def test_the_rooms_are_all_the_packages_beside_this_one():
    for room in _shadow.ROOMS:
        assert (HOME / room / "__init__.py").exists()
