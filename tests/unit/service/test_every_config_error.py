"""O01: whichever key is wrong, one line says where, what was found and what is allowed; exit 78."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from service.config.settings import Config, load
from service.errors import EXIT_CONFIG, BadConfig

BASE = {"kafka": "bootstrap.servers = 'a:1'", "zookeeper": "hosts = 'a:1'"}


def keys() -> Iterator[str]:
    """Every key of every section, but the tables of a client's own properties."""
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (
                f"{section}.{key}"
                for key in kind.model_fields
                if key not in ("catalogs", "conf", "options")
            )


def says(tmp_path: Any, key: str, value: str) -> str:
    """What is said when this key of a good configuration has this value in TOML."""
    section, _, name = key.partition(".")
    good = {**BASE, section: "" if key == "zookeeper.hosts" else BASE.get(section, "")}
    path = tmp_path / "service.toml"
    path.write_text("\n".join(f"[{each}]\n{lines}" for each, lines in good.items()))
    text = path.read_text().replace(f"[{section}]\n", f"[{section}]\n{name} = {value}\n")
    path.write_text(text)
    with pytest.raises(BadConfig) as caught:
        load(path, None)
    assert caught.value.exit_code == EXIT_CONFIG
    assert caught.value.place == str(path)
    return str(caught.value).removeprefix(f"{path}: ")


FORM = re.compile(r"(?P<key>\S+): found (?P<found>.+); allowed: (?P<allowed>.+)")


@pytest.mark.parametrize("key", [*keys()])
@pytest.mark.parametrize("value", ["[[1]]", "1979-05-27", "{ a = 1 }"])
def test_value_of_a_wrong_type_is_one_line_with_its_key(tmp_path, key, value):
    line = says(tmp_path, key, value)
    assert "\n" not in line
    found = FORM.fullmatch(line)
    assert found, line
    assert found["key"] == key
    assert len(found["allowed"]) > 3


@pytest.mark.parametrize("section", [s for s in Config.model_fields if s != "kafka"])
def test_a_key_that_does_not_exist_is_told_with_those_that_do(tmp_path, section):
    line = says(tmp_path, f"{section}.nothing_like_it", "1")
    kind = Config.model_fields[section].annotation
    assert isinstance(kind, type)
    allowed = ", ".join(kind.model_fields)
    assert line == f"{section}.nothing_like_it: found an unknown key; allowed: {allowed}"


@pytest.mark.parametrize("key", [each for each in keys() if each.endswith(("_seconds", "records"))])
@pytest.mark.parametrize("value", ["-1", "0", "'soon'"])
def test_no_time_and_no_count_may_be_nothing_or_less(tmp_path, key, value):
    found = FORM.fullmatch(says(tmp_path, key, value))
    assert found
    assert (found["key"], found["found"]) == (key, value)
