"""Turns what a command raises into one line and an exit code."""

import os
import sys
import traceback

from service.cli.app import app
from service.errors import EXIT_FAILED, EXIT_USAGE, ServiceError
from topology.errors import InvalidTopology

DEBUG_VARIABLE = "HEADRACE_DEBUG"


def main() -> int:
    """Run the command line; return its exit code. HEADRACE_DEBUG=1 shows tracebacks."""
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except ServiceError as error:
        return _tell(error, error.exit_code)
    except InvalidTopology as error:
        return _tell(error, EXIT_USAGE)
    except Exception as error:  # noqa: BLE001  # whatever it is, a user reads one line
        return _tell(error, EXIT_FAILED)
    return 0


def _tell(error: Exception, code: int) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    line = str(error) or type(error).__name__
    sys.stderr.write(f"headrace: {line}\n")
    return code
