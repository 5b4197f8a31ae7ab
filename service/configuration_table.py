"""Every key of the configuration as a table: its variable, what it takes, its default.

Read from the classes that parse it, for `service.reference`; what a key does is told by hand.
"""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from service.config import Config
from service.section import Section
from service.variables import PREFIX

_WORDS: dict[Any, str] = {
    bool: "`true` or `false`",
    int: "whole number",
    float: "number",
    str: "text",
    SecretStr: "text that is shown nowhere",
    Path: "a file",
}


def configuration_table() -> str:
    """The keys of all sections, in the order of the code."""
    lines = ["| key | variable | takes | default |", "| --- | --- | --- | --- |"]
    for section, key, field in _fields():
        variable = f"`{PREFIX}{section.upper()}__{key.upper()}`"
        takes = _takes(field.annotation, field.metadata)
        lines.append(f"| `[{section}] {key}` | {variable} | {takes} | {_default(field)} |")
    return "\n".join(lines)


def _fields() -> Iterator[tuple[str, str, FieldInfo]]:
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for key, inner in kind.model_fields.items():
                yield section, key, inner


def _takes(kind: Any, metadata: list[Any]) -> str:
    """A type and its limits, in words."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *limits = get_args(kind)
        return _takes(inner, [*metadata, *(each for limit in limits for each in _parts(limit))])
    if origin in (Union, types.UnionType):
        kinds = (each for each in get_args(kind) if each is not type(None))
        return ", or ".join(dict.fromkeys(_takes(each, metadata) for each in kinds))
    if origin is Literal:
        return ", ".join(f'`"{each}"`' for each in get_args(kind))
    if origin is dict:
        return "a table of properties"
    return f"{_WORDS.get(kind, 'a table, see above')}{_limits(metadata)}"


def _parts(limit: Any) -> list[Any]:
    return list(limit.metadata) if isinstance(limit, FieldInfo) else [limit]


def _limits(metadata: list[Any]) -> str:
    said = {
        name: getattr(each, name)
        for each in metadata
        for name in ("gt", "ge", "le")
        if getattr(each, name, None) is not None
    }
    if "ge" in said and "le" in said:
        return f" from {said['ge']} to {said['le']}"
    words = {"gt": "above", "ge": "at least", "le": "at most"}
    return "".join(f" {words[name]} {limit}" for name, limit in said.items())


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    if default is None or default == {}:
        return "absent"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"
