"""Makes the virtual environment: python3 deploy/environment.py VENV LOCK.

Needs no package itself. Installs with uv if that is on PATH, else with pip, and PySpark, which has
most of the bytes and is built here, beside all others. Prints what is downloaded, built and
installed, with the seconds since the start.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

_STARTED = time.monotonic()
_OLDEST = (3, 11)
_LARGE_MB = 5.0
# Of what pip prints, this is worth a line: large files, builds, and the installation itself.
_DOWNLOAD = re.compile(r"(?:Downloading|Using cached) (?:\S+/)?(\S+?)-\d\S* \(([\d.]+) MB\)")
_BUILD = re.compile(r"Building wheel for (\S+) .*: started")
_INSTALL = re.compile(r"Installing collected packages: (.+)")
_HEAVY = ("pyspark", "py4j")
_SAID_LINES = 15


def main() -> int:
    """Make or complete the environment; return pip's or uv's exit code."""
    if sys.version_info[:2] < _OLDEST:
        return refuse("Python 3.11 or newer; set PYTHON=/path/to/python3.11")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return refuse("Java 17 or newer on PATH or in JAVA_HOME")
    venv, lock = Path(sys.argv[1]), Path(sys.argv[2])
    python = str(venv / "bin" / "python")
    if not Path(python).exists() or not list(venv.glob("lib/*/site-packages/pip/__init__.py")):
        say(f"creating {venv}")  # or completing one whose making was interrupted
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    here = ["--no-build-isolation", "--no-deps", "--editable", "."]
    if uv := shutil.which("uv"):
        say("installing packages with uv")
        install = [uv, "pip", "install", "--python", python]
        for rest in (["--require-hashes", "-r", str(lock)], here):
            code = subprocess.run([*install, *rest], check=False).returncode
            if code:
                return code
    else:
        install = [python, "-m", "pip", "install", "--no-compile", "--progress-bar", "off"]
        code = _by_pip(install, lock) or _pip([*install, *here])
        if code:
            return code
    say("the environment is ready")
    return 0


def _by_pip(install: Sequence[str], lock: Path) -> int:
    """Install the heavy packages and the others side by side, each exactly as locked."""
    entries = re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8"))
    heavy = [entry for entry in entries if entry.startswith(tuple(f"{n}==" for n in _HEAVY))]
    light = [entry for entry in entries if entry not in heavy]
    say(f"installing {len(entries)} packages with pip")
    with TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        codes = []
        for name, part in (("heavy", heavy), ("light", light)):
            file = Path(folder) / f"{name}.lock"
            file.write_text("\n".join(part) + "\n", encoding="utf-8")
            # PySpark's wheel is unpacked at once: it need not be compressed.
            stored = ["--config-settings=--build-option=--compression=stored"] * (name == "heavy")
            locked = ["--no-deps", "--require-hashes", "-r", str(file)]
            codes.append(pool.submit(_pip, [*install, *stored, *locked]))
        return next((code.result() for code in codes if code.result()), 0)


def _pip(command: Sequence[str]) -> int:
    """Run pip and say the essential of what it prints; all of its end where it fails."""
    tail: deque[str] = deque(maxlen=_SAID_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            tail.append(line)
            if found := _DOWNLOAD.search(line):
                if float(found[2]) >= _LARGE_MB:
                    say(f"downloading {found[1]} ({float(found[2]):.0f} MB)")
            elif found := _BUILD.search(line):
                say(f"building {found[1]}")
            elif found := _INSTALL.search(line):
                names = found[1].split(", ")
                few = len(names) <= len(_HEAVY)
                say(f"installing {names[-1] if few else f'{len(names)} packages'}")
    if process.returncode:
        sys.stderr.write("".join(tail))
    return process.returncode


def refuse(what: str) -> int:
    """Say what is missing; return the exit code."""
    sys.stderr.write(f"headrace needs {what}\n")
    return 1


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    sys.stderr.write(f"{time.monotonic() - _STARTED:4.0f} s  {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
