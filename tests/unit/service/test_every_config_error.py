"""O01: whichever key is wrong, one line says where, what was found and what is allowed; exit 78."""

import re
from typing import Any

import pytest
from pydantic import BaseModel

from partition.kafka.librdkafka import DEFAULTS, FORCED, documented_properties, why_refused
from service.config.settings import Config, load
from service.errors import EXIT_CONFIG, BadConfig

BASE = {"kafka": "bootstrap.servers = 'a:1'", "zookeeper": "hosts = 'a:1'"}


def keys():
    """Every key of every section, but the tables of a client's own properties."""
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (
                f"{section}.{key}"
                for key in kind.model_fields
                if key not in ("catalogs", "conf", "options")
            )


def says(tmp_path, key, value):
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
    line = path.read_text().splitlines().index(f"{name} = {value}") + 1
    return str(caught.value).removeprefix(f"{path}:{line}: ")


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


def wrong_value(key):
    """Return a value that the key's type does not hold, in TOML and as text; None if any fits."""
    section, _, name = key.partition(".")
    kind: Any = Config.model_fields[section].annotation
    hint = str(kind.model_fields[name])
    if "Literal" in hint:
        return "'earli'", "earli"
    if any(each in hint for each in ("int", "float")):
        return "-1", "-1"
    return ("7", "maybe") if "bool" in hint else None


WRONG = {"misspelt": lambda key: ("1", "1"), "out of range": wrong_value}


@pytest.mark.parametrize("where", ["file", "environment"])
@pytest.mark.parametrize("fault", ["misspelt", "out of range"])
def test_each_key_that_is_wrong_is_told_with_its_place_and_what_is_near(
    fault, where, tmp_path, monkeypatch
):
    """O01: about 360 wrong inputs with those above: every key, by file and by variable."""
    path, tried = tmp_path / "service.toml", 0
    for key in keys():
        section, _, name = key.partition(".")
        given = WRONG[fault](key)
        if given is None:
            continue
        misspelt = f"{name[:-1]}{name[-1] * 2}" if fault == "misspelt" else name
        line = f"{misspelt} = {given[0]}" if where == "file" else ""
        good = {**BASE, section: f"{line}\n{BASE.get(section, '')}"}
        lines = [each for name, below in good.items() for each in (f"[{name}]", below)]
        path.write_text("\n".join(lines))
        variable = f"HEADRACE_{section}__{misspelt}".upper()
        place = f"environment: {variable}"
        with monkeypatch.context() as patch:
            if where == "environment":
                patch.setenv(variable, given[1])
            else:
                place = f"{path}:{path.read_text().splitlines().index(line) + 1}"
            with pytest.raises(BadConfig) as caught:
                load(path)
        tried += 1
        error = caught.value
        assert str(error).startswith(f"{place}: {section}.{misspelt}: found ")
        assert error.exit_code == EXIT_CONFIG
        if fault == "misspelt":
            assert f"did you mean '{name}'?" in error.found
    assert tried > 25


def test_all_errors_are_told_at_once_by_line(tmp_path, monkeypatch):
    path = tmp_path / "service.toml"
    path.write_text(
        "pipelin = 3\n[kafka]\nbootstrap.servers = 'a:1'\nx.y = [1]\nfetch.min.byte = 1\n"
        "[zookeeper]\nhosts = 'a:b'\n[spark.conf]\n'sparkk.master' = 'yarn'\n"
        "spark.master = 'local[2'\n'driver memory' = '1g'\n'' = 1\n"
        "[pipeline]\n# drain_secnds = 4\ndrain_secnds = 3\n"
        "[logs]\nlevel = 'debgu'\n"
    )
    monkeypatch.setenv("HEADRACE_PIPLINE__NAME", "x")
    with pytest.raises(BadConfig) as caught:
        load(path)
    errors = [caught.value, *caught.value.others]
    assert [(error.line, error.key) for error in errors] == [
        (0, "HEADRACE_PIPLINE__NAME"),
        (1, "pipelin"),
        (4, "kafka.x.y"),
        (5, "kafka.fetch.min.byte"),
        (7, "zookeeper.hosts"),
        (9, "spark.conf.sparkk.master"),
        (10, "spark.conf.spark.master"),
        (11, "spark.conf.driver memory"),
        (12, "spark.conf."),
        (15, "pipeline.drain_secnds"),
        (17, "logs.level"),
    ]
    near = {error.key: re.findall("did you mean '(.+)'", error.found) for error in errors}
    assert {key: names for key, names in near.items() if names} == {
        "HEADRACE_PIPLINE__NAME": ["pipeline"],
        "pipelin": ["pipeline"],
        "kafka.fetch.min.byte": ["fetch.min.bytes"],
        "pipeline.drain_secnds": ["drain_seconds"],
        "logs.level": ["debug"],
    }
    assert errors[5].allowed.startswith("spark.master, or what begins with 'spark.'")
    assert {errors[n].found for n in (5, 7, 8)} == {"a name that Spark ignores"}


KAFKA = {  # a property and a value for it: what is found, what is allowed
    ("bootstrap.server", "'a:1'"): ("did you mean 'bootstrap.servers'?", "librdkafka's properties"),
    ("fetch.min.byte", "1"): ("did you mean 'fetch.min.bytes'?", "librdkafka's properties"),
    ("error_cb", "'x'"): ("'x'", "what librdkafka takes (expected error_cb property as a callable"),
    ("on_commit", "'x'"): ("an unknown key", "librdkafka's properties"),
    ("default.topic.config", "'x'"): ("an unknown key", "librdkafka's properties"),
    ("fetch.min.bytes", "'many'"): ("'many'", "0 .. 2147483647"),
    ("message.max.bytes", "7"): ("7", "1000 .. 1000000000"),
    ("isolation.level", "'commited'"): ("'commited'", "read_uncommitted, read_committed"),
    ("check.crcs", "'maybe'"): ("'maybe'", "true, false"),
    ("acks", "'al'"): ("'al'", "-1 .. 1000"),
    ("enable.auto.commit", "true"): ("True", "no such key: it is always false here"),
    ("auto.offset.reset", "'latest'"): ("'latest'", "no such key: it is always error here"),
}


@pytest.mark.parametrize("where", ["file", "environment"])
def test_properties_that_librdkafka_refuses_are_told_at_once(where, tmp_path, monkeypatch):
    path, place = tmp_path / "service.toml", ""
    if where == "file":
        lines = [f"{name} = {value}" for name, value in KAFKA]
        path.write_text("\n".join(["[kafka]", *lines, "[zookeeper]", "hosts = 'a:1'"]))
    else:
        path.write_text("[kafka]\n[zookeeper]\nhosts = 'a:1'")
        for name, value in KAFKA:
            variable = f"HEADRACE_KAFKA__{name.replace('.', '_').upper()}"
            monkeypatch.setenv(variable, value.strip("'"))
    with pytest.raises(BadConfig) as caught:
        load(path)
    errors = {error.key.removeprefix("kafka."): error for error in caught.value.others}
    errors["bootstrap.server"] = caught.value
    assert errors["bootstrap.servers"].found == "nothing"
    assert len(errors) == len(KAFKA) + 1
    for number, ((name, _), (found, allowed)) in enumerate(KAFKA.items(), 2):
        if where == "file" or "_" not in name:  # which is '.' in variables
            error = errors[name]
            place = f"{path}:{number}: " if where == "file" else "environment: HEADRACE_KAFKA__"
            assert str(error).startswith(place)
            assert found.lower().strip("'") in error.found.lower()
            assert error.allowed.startswith(allowed)


def test_properties_that_a_plugin_may_know_are_left_to_it(tmp_path):
    path = tmp_path / "service.toml"
    properties = "plugin.library.paths = ''\nmonitoring.topic = 'x'\nbootstrap.servers = 'a:1'"
    path.write_text(f"[kafka]\n{properties}\n[zookeeper]\nhosts = 'a:1'\n")
    assert load(path).kafka["monitoring.topic"] == "x"


def test_properties_are_those_of_the_installed_librdkafka():
    """Each that it documents is known to it, and each of ours is documented."""
    documented = documented_properties()
    refused = [name for name in documented if "No such conf" in why_refused(name, "1")]
    assert (refused, {*DEFAULTS, *FORCED} - {*documented}) == ([], set())
    assert len(documented) > 150


def test_variables_that_are_no_tables_hide_no_other_error(monkeypatch):
    not_json = {
        "kafka": "x",
        "pipeline": "[",
        "zookeeper": '{"password":',
        "storage__catalogs": "'",
    }
    others = {"logs": "3", "spark": "[]", "retries__limit": "-1", "pipline__name": "y"}
    for name, value in {**not_json, **others}.items():
        monkeypatch.setenv(f"HEADRACE_{name.upper()}", value)
    with pytest.raises(BadConfig) as caught:
        load(None)
    errors = {error.place.rpartition("_")[2].lower(): error for error in caught.value.others}
    assert caught.value.key == "HEADRACE_PIPLINE__NAME"
    assert errors.keys() == {"kafka", "pipeline", "zookeeper", "catalogs", "logs", "spark", "limit"}
    for section in ("kafka", "pipeline", "zookeeper", "catalogs"):
        found = errors[section].found, errors[section].allowed
        assert found == ("text that is not JSON", "a table")
    assert caught.value.__context__ is None, "its text may show a secret value"
