"""python -m benchmarks [SUITE]: run a suite of measurements."""

import argparse
import importlib
import sys

SUITES = {"acker": "benchmarks.acker", "hot-path": "benchmarks.hot_path"}


def main() -> int:
    """Run the suite that was asked for; the others are not imported."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", default="hot-path", choices=sorted(SUITES))
    parser.add_argument("--records", type=int, help="hot-path: how many at least (2000000)")
    parser.add_argument("--trees", type=int, help="acker: how many a round (200000)")
    parser.add_argument("--in-flight", type=int, help="acker: when bytes are counted (1000000)")
    parser.add_argument("--rounds", type=int, help="runs of each variant; medians count (3, 9)")
    options = {name: value for name, value in vars(parser.parse_args()).items() if value}
    suite = importlib.import_module(SUITES[options.pop("suite")])
    code: int = suite.main(**options)
    return code


if __name__ == "__main__":
    sys.exit(main())
