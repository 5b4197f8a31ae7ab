"""A wrong chain is a mypy error, and a right one is none: what a user's type checker says."""

import subprocess
import sys
from pathlib import Path

from tests.support.patience import seconds

CHAINS = Path(__file__).with_name("chains.py")
HOME = CHAINS.parents[2]


def test_mypy_takes_the_right_chains_and_refuses_every_wrong_one():
    """One run: an `ignore` in `chains.py` that refuses nothing is itself an error.

    With the cache that `make types` has filled it takes a tenth of the time.
    """
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", str(CHAINS)],
        cwd=HOME, capture_output=True, text=True, check=False, timeout=seconds(240),
    )  # fmt: skip
    assert done.stdout.startswith("Success: no issues found"), done.stdout + done.stderr
    wrong = [line for line in CHAINS.read_text().splitlines() if "type: ignore" in line]
    assert len(wrong) >= 30
    assert all("type: ignore[" in line for line in wrong), "each names the code of its error"
