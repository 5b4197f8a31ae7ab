"""An interpreter that lacks some packages, as where an extra was not installed."""

import os
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPARK = ("pyspark", "py4j")
EXTRAS = (*SPARK, "deltalake", "httpx2", "opentelemetry", "psycopg", "pyiceberg", "sqlalchemy")


def without(folder: Path, *packages: str) -> tuple[list[str], dict[str, str]]:
    """Its command and its environment: all that is installed here, but for these packages.

    `-S` keeps the environment's own folder off the path; another one links to what is in it.
    """
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(packages):
            (folder / entry.name).symlink_to(entry)
    path = os.pathsep.join(map(str, (ROOT, folder)))
    return [sys.executable, "-S"], {**os.environ, "PYTHONPATH": path}
