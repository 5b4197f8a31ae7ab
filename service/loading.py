"""Finds the topology that MODULE:TOPOLOGY names: on the command line, and on executors."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from service.errors import NoTopology
from topology.errors import InvalidTopology, TopologyError
from topology.monitoring import error_at, text_of
from topology.stream import takes_nothing
from topology.topology import Topology


def load_topology(target: str, paths: Sequence[str] = ()) -> Topology:
    """Import the module and return the topology in it, or that a function there returns.

    Raises NoTopology, InvalidTopology.

    The current folder may hold the module, and so may `paths`. They come last on the path, so
    that a folder named like one of our rooms is not taken for it.
    """
    module_name, _, name = target.partition(":")
    if not all(module_name.split(".")) or not name:
        raise NoTopology(f"'{target}': MODULE:TOPOLOGY is needed, such as my_package.flow:topology")
    for place in (*paths, str(Path.cwd())):
        if place not in sys.path:
            sys.path.append(place)
    what = f"import of {module_name}"
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, name, None)
        if callable(found) and not isinstance(found, type) and takes_nothing(found):
            what = f"call of {name}"
            found = found()
    except (Exception, SystemExit) as error:
        raise _unloaded(target, module_name, what, error) from error
    if not isinstance(found, Topology):
        kind = f"no topology but of type {type(found).__name__}"
        kind = kind if hasattr(module, name) else "missing"
        names = [key for key, value in vars(module).items() if isinstance(value, Topology)]
        message = (
            f"'{target}': '{name}' in {module_name} is {kind}; "
            f"topologies there: {', '.join(names) or 'none'}"
        )
        raise NoTopology(message)
    return found


def _unloaded(target: str, module: str, what: str, error: Exception | SystemExit) -> Exception:
    """Return the error of a module that raised one, with the user's file and line."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
        return NoTopology(f"'{target}': there is no module '{missing}' here or installed")
    at = error_at(error)
    where = f" (at {at})" if at else ""
    if isinstance(error, TopologyError):  # a sink's schema, say
        return InvalidTopology(f"'{target}': {error}{where}")
    name = type(error).__name__
    said = text_of(error).removeprefix(f"{name}: ")
    return NoTopology(f"'{target}': the {what} fails with {name}: {said}{where}")
