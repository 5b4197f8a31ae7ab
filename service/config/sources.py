"""HEADRACE_… variables and the files that some of them name, and errors of values in one line.

`HEADRACE_ZOOKEEPER__PASSWORD__FILE=/run/secrets/password` gives the variable without `__FILE` what
is in that file (the convention of Grafana's variables): the environment of a process can be read
by whatever it starts.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from service.errors import BadConfig
from topology.masking import is_secret

PREFIX = "HEADRACE_"
OTHER_VARIABLES = frozenset(
    {
        "HEADRACE_DEBUG",
        "HEADRACE_FAILPOINT",
        "HEADRACE_IVY_SETTINGS",
        "HEADRACE_JAR_CACHE",
        "HEADRACE_TOOLS",
    }
)  # read elsewhere

_FILE = "__FILE"
_MOST_BYTES = 65_536
_ENVIRONMENT = "environment"


def flat(table: Any, prefix: str = "") -> Any:
    """Join nested tables into dotted names: TOML reads `a.b = 1` as a table in a table."""
    if not isinstance(table, Mapping):
        return table
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; a later table's value wins."""
    found: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            below = found.get(key)
            if isinstance(below, Mapping) and isinstance(value, Mapping):
                found[key] = merged(below, value)
            else:
                found[key] = value
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """Read a regular file: a pipe would be empty the second time. Raises BadConfig."""
    allowed = "a readable TOML file"
    if not path.is_file():
        found = "no regular file" if path.exists() else "no such file"
        raise BadConfig(str(path), "(file)", found, allowed)
    try:
        table = tomllib.loads(path.read_bytes().decode())
    except UnicodeDecodeError:
        raise BadConfig(str(path), "(file)", "bytes that are no UTF-8", allowed) from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadConfig(str(path), "(file)", reason, allowed) from None
    except ValueError as error:  # a whole number longer than Python reads
        raise BadConfig(str(path), "(file)", str(error), "whole numbers of 64 bits") from None
    _check_numbers(str(path), table)
    return table


class Variables(EnvSettingsSource):
    """The variables; in a property's name their underscores are dots.

    Those of Iceberg's catalogues are as pyiceberg has them: two underscores are a dot, one a dash.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        settings: Any = model  # of which the source reads no more than the fields
        super().__init__(settings, env_prefix=PREFIX, env_nested_delimiter="__")

    def __call__(self) -> dict[str, Any]:
        given = {name.lower(): value for name, value in from_files(os.environ).items()}
        self.env_vars = {
            name: value
            for name, value in {**self.env_vars, **given}.items()
            if not name.endswith(_FILE.lower())
        }
        found = super().__call__()
        spark = found.get("spark")
        for holder, section in ((found, "kafka"), (spark, "conf")):
            if isinstance(holder, dict) and isinstance(holder.get(section), dict):
                holder[section] = {
                    key.replace("_", "."): value for key, value in flat(holder[section]).items()
                }
        catalogs = (found.get("storage") or {}).get("catalogs") or {}
        for name, given in catalogs.items():
            catalogs[name] = {key.replace("_", "-"): v for key, v in flat(given).items()}
        return found


def check_names(names: Iterable[str], sections: Collection[str]) -> None:
    """Raise BadConfig for a variable that names no section: a typing error, most likely."""
    for name in names:
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
            continue
        section = name.removeprefix(PREFIX).split("__")[0].lower()
        if section not in sections:
            allowed = ", ".join(f"{PREFIX}{known.upper()}__…" for known in sections)
            raise BadConfig(_ENVIRONMENT, name, f"section '{section}'", allowed)


def from_files(variables: Mapping[str, str]) -> dict[str, str]:
    """Read the files that variables name; return their values by the name without `__FILE`.

    One line break at the end is not part of the value. Raises BadConfig.
    """
    found: dict[str, str] = {}
    for name, path in variables.items():
        if not name.startswith(PREFIX) or not name.endswith(_FILE):
            continue
        plain = name.removesuffix(_FILE)
        if plain in variables:
            raise BadConfig(_ENVIRONMENT, name, f"{plain} as well", "one of the two")
        found[plain] = _read(name, path)
    return found


def _read(name: str, path: str) -> str:
    allowed = f"a readable file of UTF-8 text, at most {_MOST_BYTES:,} bytes"
    try:
        with Path(path).open("rb") as file:
            value = file.read(_MOST_BYTES + 1)
        if len(value) > _MOST_BYTES:
            raise BadConfig(_ENVIRONMENT, name, "a larger file", allowed)
        return value.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadConfig(_ENVIRONMENT, name, "bytes that are no UTF-8", allowed) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadConfig(_ENVIRONMENT, name, reason, allowed) from None


_LONGEST_FOUND = 80
_CREDENTIALS = re.compile(r"[^/'\"]*@")  # user:password@host, where only hosts belong
_BITS = 63  # beside the sign: what TOML asks of those who read it
_SCALARS = ("str", "int", "float", "bool")  # the arms of a property's type, in pydantic's words


def as_bad_config(
    error: ValidationError,
    model: type[BaseModel],
    place: str,
    variables: Iterable[str] = (),
    prefix: str = "",
) -> BadConfig:
    """Return the first fault of a validation: key path, what was found, what is allowed.

    `place` is the file; a key that one of the `variables` sets is blamed on that one.
    """
    fault = error.errors(include_url=False)[0]
    parts = [str(part) for part in fault["loc"]]
    is_property = not {"kafka", "conf"}.isdisjoint(parts[:-2]) and parts[-1] in _SCALARS
    if is_property:
        parts.pop()
    variable = prefix + "__".join(parts).upper().replace(".", "_")
    if variable in variables:
        place = f"environment: {variable}"
    key = ".".join(parts)
    kind = fault["type"]
    if kind == "extra_forbidden":
        return BadConfig(
            place, key, "an unknown key", ", ".join(_fields_at(model, parts[:-1])) or "no key"
        )
    if kind == "missing":
        return BadConfig(place, key, "nothing", _hint(model, parts))
    allowed = fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind in ("model_type", "dict_type"):
        allowed = "a table"
    if is_property:
        allowed = "a string, a number, true or false"
    return BadConfig(place, key, _found(key, fault["input"]), allowed)


def _check_numbers(place: str, value: Any, key: str = "") -> None:
    """Refuse a whole number of a file that has more than 64 bits: Python may not even print it.

    Raises BadConfig, which names the key.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_numbers(place, inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(place, inner, key)
    elif isinstance(value, int) and value.bit_length() > _BITS:
        found = f"a whole number of {value.bit_length()} bits"
        raise BadConfig(place, key, found, "whole numbers of 64 bits, one of them the sign")


def _found(key: str, value: Any) -> str:
    """Show what was found, unless it is, or may hold, a secret."""
    if value is None:  # only a key that is absent is None: TOML has no such value
        return "nothing"
    if is_secret(key):
        return "a hidden value"
    if isinstance(value, Mapping):
        names = ", ".join(map(str, value)) or "none"
        return f"a table with the keys {names}"[:_LONGEST_FOUND]
    if isinstance(value, list):
        return "a list"
    return _CREDENTIALS.sub("***@", repr(value))[:_LONGEST_FOUND]


def _fields_at(model: type[BaseModel], parts: Sequence[str]) -> Mapping[str, FieldInfo]:
    """Return the keys of a table; none of what is no table, or has any keys."""
    for part in parts:
        field = model.model_fields.get(part)
        inner = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return {}
        model = inner
    return model.model_fields


def _hint(model: type[BaseModel], parts: Sequence[str]) -> str:
    field = _fields_at(model, parts[:-1]).get(parts[-1])
    if field is not None and field.description:
        return field.description
    inner = _fields_at(model, parts)
    required = [name for name, each in inner.items() if each.is_required()]
    return f"a table with {', '.join(required)}" if inner else "a value is required"
