"""python -m benchmarks [SUITE]: run a suite of measurements."""

import argparse
import sys

from benchmarks import hot_path

SUITES = {"hot-path": hot_path.main}


def main() -> int:
    """Run the suite that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", default="hot-path", choices=sorted(SUITES))
    parser.add_argument("--records", type=int, default=2_000_000, help="how many at least")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each variant; medians count")
    options = parser.parse_args()
    return SUITES[options.suite](records=options.records, rounds=options.rounds)


if __name__ == "__main__":
    sys.exit(main())
