"""`headrace init`: a project to begin with, from the templates in `project/`."""

import re
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from service.cli.common import Json, print_json

app = typer.Typer()

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_SUFFIX = ".in"


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        expected = "a lower-case letter, then at most 62 lower-case letters, digits and hyphens"
        raise typer.BadParameter(f"found '{name}', expected {expected}")
    return name


@app.command()
def init(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The new folder's name, also of the topology and its topic: orders.",
            callback=_checked_name,
        ),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Make a project: a pipeline with its test, configuration and image.

    Nothing is written over: the folder must be missing or empty.
    """
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise typer.BadParameter(f"{folder.absolute()} exists, expected none, or an empty folder")
    folder.mkdir(exist_ok=True)
    words = {"topic": name, "table": name.replace("-", "_"), "version": version("headrace")}
    written = []
    for template in sorted(files("service.cli").joinpath("project").iterdir(), key=str):
        text = template.read_text(encoding="utf-8")
        for key, word in words.items():
            text = text.replace(f"{{{key}}}", word)
        path = folder / template.name.removesuffix(_SUFFIX)
        path.write_text(text, encoding="utf-8")
        written.append(path.name)
    if as_json:
        print_json({"folder": str(folder.absolute()), "files": written})
        return
    sys.stdout.write(
        f"{name}/ has {', '.join(written)}.\n\n"
        f"Next:\n"
        f"  cd {name}\n"
        "  pip install --requirement requirements-dev.txt\n"
        "  python -m pytest\n"
        "  python pipeline.py --embedded --config service.toml\n"
    )
