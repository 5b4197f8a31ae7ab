"""What commands print: as wide as a terminal, and unbroken where there is none."""

import subprocess
import sys

from tests.support.patience import seconds

CODE = """
from rich.table import Table
from service.cli.common import answers
table = Table()
for name in ("letter", "reason"):
    table.add_column(name)
table.add_row("0:17", "no such currency: XAF, in a text that is longer than a terminal, " * 3)
answers().print(table)
"""


def test_a_text_in_a_table_is_found_by_grep_though_it_is_longer_than_a_terminal_is_wide() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds(60),
    )
    (row,) = [line for line in done.stdout.splitlines() if "0:17" in line]
    assert row.count("no such currency: XAF, in a text that is longer than a terminal") == 3
