"""HEADRACE_… variables and the files that some of them name, and errors of values in one line.

`HEADRACE_ZOOKEEPER__PASSWORD__FILE=/run/secrets/password` gives the variable without `__FILE` what
is in that file (the convention of Grafana's variables): the environment of a process can be read
by whatever it starts.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import EnvSettingsSource

from service.errors import BadConfig
from topology.masking import is_secret

PREFIX = "HEADRACE_"
OTHER_VARIABLES = frozenset(
    {
        "HEADRACE_DEBUG",
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


class NotJson(str):
    """The text of a variable that has to hold a table as JSON. It may have secrets."""

    __slots__ = ()


class Variables(EnvSettingsSource):
    """The variables; in a property's name their underscores are dots.

    Those of Iceberg's catalogues are as pyiceberg has them: two underscores are a dot, one a dash.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        settings: Any = model  # of which the source reads no more than the fields
        super().__init__(settings, env_prefix=PREFIX, env_nested_delimiter="__")

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Leave what cannot be parsed to the validation, which tells all errors at once."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return NotJson(value)

    def __call__(self) -> dict[str, Any]:
        given = {name.lower(): value for name, value in from_files(os.environ).items()}
        self.env_vars = {
            name: value
            for name, value in {**self.env_vars, **given}.items()
            if not name.endswith(_FILE.lower())
        }
        found = super().__call__()
        spark, catalogs = found.get("spark"), _table_in(found.get("storage"), "catalogs")
        _rename(found, "kafka", ".")
        _rename(spark, "conf", ".")
        for name in catalogs or ():
            _rename(catalogs, name, "-")
        return found


def _table_in(holder: Any, key: str) -> Any:
    table = holder.get(key) if isinstance(holder, dict) else None
    return table if isinstance(table, dict) else None


def _rename(holder: Any, key: str, separator: str) -> None:
    """Put a separator in place of the underscores of a table's names."""
    if (table := _table_in(holder, key)) is not None:
        holder[key] = {name.replace("_", separator): v for name, v in flat(table).items()}


def wrong_names(names: Iterable[str], sections: Collection[str]) -> list[BadConfig]:
    """Return errors of variables that name no section: typing errors, most likely."""
    found = []
    for name in names:
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
            continue
        section = name.removeprefix(PREFIX).split("__")[0].lower()
        if section not in sections:
            allowed = ", ".join(f"{PREFIX}{known.upper()}__…" for known in sections)
            said = f"section '{section}'{did_you_mean(section, sections)}"
            found.append(BadConfig(_ENVIRONMENT, name, said, allowed))
    return found


def did_you_mean(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f" (did you mean '{near[0]}'?)" if near else ""


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
_CREDENTIALS = re.compile(r"(?<![^/'\"])[^/'\"]*@")  # user:password@host, where only hosts belong
_BITS = 63  # beside the sign: what TOML asks of those who read it


def errors_of(
    error: ValidationError,
    model: type[BaseModel],
    path: Path | None = None,
    variables: Iterable[str] = (),
    prefix: str = "",
) -> list[BadConfig]:
    """Return the errors of a validation, one a key: its path, what was found, what is allowed.

    They are those of the file at `path`; a key that one of the `variables` sets is blamed on that
    one.
    """
    text = "" if path is None else path.read_text()
    found: dict[str, BadConfig] = {}
    for fault in error.errors(include_url=False):
        for parts, said, allowed in _said(model, fault):
            key, line = ".".join(parts), 0
            place = _ENVIRONMENT if path is None else str(path)
            variable = prefix + "__".join(parts).upper().replace(".", "_")
            if variable in variables:
                place = f"{_ENVIRONMENT}: {variable}"
            else:
                line = line_of_key(text, key)
            found.setdefault(key, BadConfig(place, key, said, allowed, line))
    return sorted(found.values(), key=lambda each: (each.found == "nothing", each.line))


_BELOW = "keys_below"


Fault: TypeAlias = tuple[str, str, str]  # a key of a table, what was found, what is allowed


def wrong_keys(*faults: Fault) -> PydanticCustomError:
    """Return the error of a table for a validator to raise.

    The keys of the whole configuration are dotted.
    """
    return PydanticCustomError(_BELOW, "correct keys", {_BELOW: faults})


def _said(model: type[BaseModel], fault: Any) -> Iterator[tuple[list[str], str, str]]:
    """Give a fault's keys, with what was found and what is allowed there."""
    parts, kind = [str(part) for part in fault["loc"]], fault["type"]
    if kind == "extra_forbidden":
        known = _fields_at(model, parts[:-1])
        near = did_you_mean(parts[-1], known)
        yield parts, f"an unknown key{near}", ", ".join(known) or "no key"
        return
    if kind == "missing":
        yield parts, "nothing", _hint(model, parts)
        return
    if kind == _BELOW:
        for name, found, is_allowed in fault["ctx"][_BELOW]:
            yield [*parts, name] if parts else name.split("."), found, is_allowed
        return
    allowed = fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    near = ""
    if kind == "literal_error" and isinstance(fault["input"], str):
        near = did_you_mean(fault["input"], re.findall("'([^']+)'", allowed))
    if kind in ("model_type", "dict_type"):
        allowed = "a table"
    found = shown(".".join(parts), fault["input"])
    if isinstance(fault["input"], NotJson) and allowed == "a table":
        found = "text that is not JSON"
    yield parts, f"{found}{near}", allowed


_KEY = r"""[\w-]+|"[^"\n]*"|'[^'\n]*'"""
_PLACE = re.compile(
    rf"""\s*(?P<table>\[\[?)?\s*(?P<key>(?:{_KEY})(?:\s*\.\s*(?:{_KEY}))*)\s*[]=]"""
)


def line_of_key(text: str, key: str) -> int:
    """Return the number of the line that sets a key, or begins the table it belongs to; 0: none."""
    table, best, number = "", "", 0
    for at, line in enumerate(text.splitlines(), 1):
        if place := _PLACE.match(line):
            name = ".".join(part.strip("\"'") for part in re.findall(_KEY, place["key"]))
            table = name if place["table"] else table
            full = name if place["table"] or not table else f"{table}.{name}"
            if f"{key}.".startswith(f"{full}.") and len(full) > len(best):
                best, number = full, at
    return number


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


def shown(key: str, value: Any) -> str:
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
