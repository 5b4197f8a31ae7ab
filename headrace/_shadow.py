"""Fails clearly when a room's name is taken by a package from elsewhere.

The rooms are top-level packages with common names (`service`, `sinks`, …). If a user's
own folder of that name comes first on the path, nothing would work, and not say why.
"""

import importlib.util
from pathlib import Path

ROOMS = ("acker", "partition", "service", "sinks", "topology", "transactions")


def check() -> None:
    """Raise ImportError, naming both places, if a room is not the sibling of this package."""
    home = Path(__file__).resolve().parent.parent
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        found = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if found != home / room:
            message = (
                f"package '{room}' of Headrace is at {home / room}, but Python finds "
                f"{found or 'none'}; rename that one, or start Python with PYTHONSAFEPATH=1"
            )
            raise ImportError(message)


check()
