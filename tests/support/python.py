"""Python code in a process of its own."""

import subprocess
import sys
import textwrap
from typing import Any

from tests.support.patience import seconds


def run_python(
    code: str, *words: str, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run code as `python -c` does, and capture what it prints as text."""
    command = [sys.executable, "-c", textwrap.dedent(code), *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=check, timeout=seconds(60), **options
    )
