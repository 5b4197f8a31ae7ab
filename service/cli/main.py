"""Turns what a command raises into one line and an exit code."""

import os
import sys
import traceback

from partition.errors import KafkaMisconfigured
from service.cli.app import app
from service.cli.common import describe
from service.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE, ServiceError
from service.observability.logs import stderr
from topology.errors import InvalidTopology
from topology.masking import escaped

DEBUG_VARIABLE = "HEADRACE_DEBUG"


def main() -> int:
    """Run the command line; return its exit code. HEADRACE_DEBUG=1 shows tracebacks."""
    try:
        app(prog_name="headrace")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except ServiceError as error:
        return _tell(error, error.exit_code)
    except InvalidTopology as error:
        return _tell(error, EXIT_USAGE)
    except KafkaMisconfigured as error:
        return _tell(error, EXIT_CONFIG)
    except Exception as error:  # noqa: BLE001 - whatever it is, a user reads one line
        return _tell(error, EXIT_FAILED)
    finally:
        _flush()
    return 0


def _tell(error: Exception, code: int) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        stderr.write(escaped("".join(traceback.format_exception(error)), keeping="\n"))
    stderr.write(f"headrace: {describe(error)}\n")
    return code


def _flush() -> None:
    """Let out what is buffered; that nobody reads it is no error of the command."""
    stderr.drain()
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
