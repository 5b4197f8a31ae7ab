"""HEADRACE_… variables, and the files that some of them name instead of holding a value.

`HEADRACE_ZOOKEEPER__PASSWORD__FILE=/run/secrets/password` gives the variable without `__FILE` what
is in that file (the convention of Grafana's variables): the environment of a process can be read
by whatever it starts.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_settings import EnvSettingsSource

from service.errors import BadConfig

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
    """TOML reads `a.b = 1` as a table in a table; properties have dotted names."""
    if not isinstance(table, Mapping):
        return table
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


class Variables(EnvSettingsSource):
    """The variables; in a property's name their underscores are dots.

    Those of Iceberg's catalogues are as pyiceberg has them: two underscores are a dot, one a dash.
    """

    def __call__(self) -> dict[str, Any]:
        """The sections that variables speak of."""
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
    """What the variables that name files stand for, by the name without `__FILE`.

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
