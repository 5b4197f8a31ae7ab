"""Arguments and options that several subcommands of `headrace` have."""

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:TOPOLOGY", help="A module and the topology in it: my_package.flow:topology."
    ),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="The TOML file; HEADRACE_… variables stand above it."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the facts as one JSON object, the last line.")
]
