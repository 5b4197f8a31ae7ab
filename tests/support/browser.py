"""A real browser, for tests of pages.

It is taken from PATH, or else, once, from Debian's packages, into the environment: nothing is
installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import patience

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_PACKAGE = "chromium-headless-shell"
_KEPT = Path(sys.prefix) / _PACKAGE


def dom(url: str, folder: Path, seconds: float) -> str:
    """A page's markup after its scripts have run for so long; fails unless the browser can.

    The time is the page's own: it stands still while an answer is awaited, and else runs ahead.
    """
    command, environment = _browser()
    ran = subprocess.run(
        [
            *command,
            "--headless",
            "--no-sandbox",  # root may not have one; only our own pages are looked at
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder}",
            f"--virtual-time-budget={seconds * 1000:.0f}",
            "--dump-dom",
            url,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience.seconds(120),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _browser() -> tuple[list[str], dict[str, str]]:
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return [found], dict(os.environ)
    if not _KEPT.exists():
        _fetch()
    (program,) = _KEPT.glob("usr/lib/chromium/*shell")
    libraries = sorted({str(each.parent) for each in _KEPT.glob("**/lib*.so*")})
    return [str(program)], os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)}


def _fetch() -> None:
    """Get the package, and those that it needs and the machine lacks."""
    if shutil.which("apt-get") is None:
        pytest.fail("put chromium on PATH; without apt-get none can be fetched")
    folder = _KEPT.with_name(f"{_KEPT.name}.{os.getpid()}")
    archives = folder / "archives"
    (archives / "partial").mkdir(parents=True)
    command = [
        "apt-get", "install", "--yes", "--no-install-recommends", "--download-only",
        "-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1", _PACKAGE,
    ]  # fmt: skip
    try:
        if subprocess.run(command, check=False, capture_output=True).returncode:
            subprocess.run(["apt-get", "update"], check=True, capture_output=True)
            subprocess.run(command, check=True, capture_output=True)
        for package in archives.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
        shutil.rmtree(archives)
        folder.replace(_KEPT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
