"""What is said in one line: an error, without secrets; facts, as JSON."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from service.printing import escaped

_ROOMS = ("service", "topology", "sinks", "partition", "acker", "transactions", "headrace")
_LONGEST = 1000


def describe(error: BaseException) -> str:
    """An error in one line: our own by their message, others with their class, too."""
    name = type(error).__name__
    inner = error.args[0] if error.args else None
    said = getattr(inner, "str", None)  # a KafkaException's KafkaError
    text = str(said()) if callable(said) else str(error)
    text = "\n".join([text, *getattr(error, "__notes__", ())])
    line = " | ".join(part for part in map(str.strip, text.splitlines()) if part)
    is_ours = type(error).__module__.partition(".")[0] in _ROOMS
    line = line if is_ours and line else f"{name}: {line}" if line else name
    return escaped(line)[:_LONGEST]


def print_json(facts: Mapping[str, Any]) -> None:
    """Print facts as one JSON object to standard output."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
