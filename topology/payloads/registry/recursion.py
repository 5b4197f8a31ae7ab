"""Whether values of an Avro schema may contain themselves."""

from typing import Any

from topology.record import Reject

_MOST = 1_000  # schemas remembered


def cycle_in(schema: Any) -> str | None:
    """The name of a record that may contain itself, or None; of a schema as fastavro parses it."""
    return _cycle(schema, ())


class CycleCheck:
    """Refuses schemas with a cycle; each is walked once, as it is the same object every time."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, str | None]] = {}  # the schema is kept, and so its id

    def __call__(self, schema: Any) -> None:
        """Raise Reject if a record of the schema may contain itself."""
        seen = self._seen.get(id(schema))
        if seen is None:
            if len(self._seen) >= _MOST:
                self._seen.clear()
            seen = self._seen[id(schema)] = (schema, cycle_in(schema))
        if seen[1] is not None:
            raise Reject(f"'{seen[1]}' of the schema may contain itself, which is refused")


def _cycle(node: Any, within: tuple[str, ...]) -> str | None:
    """Walk a schema. Names stand for what was walked where it was defined, before them."""
    if isinstance(node, str):
        return node if node in within else None
    if isinstance(node, list):
        inner = node
    elif "fields" in node:
        within = (*within, node["name"])
        inner = [field["type"] for field in node["fields"]]
    else:
        inner = [node[name] for name in ("items", "values", "type") if name in node]
    found = (_cycle(each, within) for each in inner)
    return next((name for name in found if name is not None), None)
