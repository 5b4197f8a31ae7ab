"""O01: whichever key is wrong, one line says where, what was found and what is allowed; exit 78."""

import re

import pytest
from pydantic import BaseModel

from partition.kafka.librdkafka import DEFAULTS, FORCED, documented_properties, why_refused
from service.config.settings import Config, load
from service.errors import EXIT_CONFIG, BadConfig

CANARY = "canary-4f1e9b"
CLIENTS_OWN = ("catalogs", "conf", "options")
BASE = {"kafka": "bootstrap.servers = 'a:1'", "zookeeper": "hosts = 'a:1'"}


def keys():
    """Every key of every section, but the tables of a client's own properties."""
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            own = [each for each in kind.model_fields if each not in CLIENTS_OWN]
            yield from (f"{section}.{each}" for each in own)


KEYS = [*keys()]
assert len(KEYS) > 25


def wrong(key):
    """Yield names and values that are wrong in TOML, and as a variable, if one can hold them."""
    section, _, name = key.partition(".")
    hint = str(Config.model_fields[section].annotation.model_fields[name])
    yield from ((other, "1", "1") for other in (f"{name}{name[-1]}", "nothing_like_it"))
    yield from ((name, value, None) for value in ("[[1]]", "1979-05-27", "{ a = 1 }"))
    if "Literal" in hint:
        yield name, "'earli'", "earli"
    elif "int" in hint or "float" in hint:
        yield name, "-1", "-1"
    elif "bool" in hint:
        yield name, "7", "maybe"
    if name.endswith(POSITIVE):
        yield from ((name, value, None) for value in ("0", "'soon'"))


POSITIVE = ("_seconds", "records")
SAID = re.compile(r"found (?P<found>.+), expected (?P<allowed>.{4,})")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("where", ["file", "environment"])
def test_each_wrong_key_is_one_line_with_its_place(key, where, tmp_path, monkeypatch):
    """O01: about 900 wrong inputs."""
    section, _, name = key.partition(".")
    path = tmp_path / "service.toml"
    for wrong_name, value, text in wrong(key):
        if where == "environment" and text is None:
            continue
        line = f"{wrong_name} = {value}" if where == "file" else ""
        good = "" if wrong_name == "hosts" else BASE.get(section, "")
        tables = {**BASE, section: f"{line}\n{good}"}
        path.write_text("\n".join(f"[{each}]\n{lines}" for each, lines in tables.items()))
        place = f"{path}:{path.read_text().splitlines().index(line) + 1}"
        with monkeypatch.context() as patch:
            if where == "environment":
                variable = f"HEADRACE_{section}__{wrong_name}".upper()
                place = f"environment: {variable}"
                patch.setenv(variable, text)
            with pytest.raises(BadConfig) as caught:
                load(path)
        assert caught.value.exit_code == EXIT_CONFIG
        start = f"{place}: {section}.{wrong_name}: "
        said = SAID.fullmatch(str(caught.value).removeprefix(start))
        assert said, caught.value
        if wrong_name == "nothing_like_it":
            known = Config.model_fields[section].annotation.model_fields
            assert said.groups() == ("an unknown key", ", ".join(known))
        elif wrong_name != name:
            assert f"did you mean '{name}'?" in said["found"]
        elif name.endswith(POSITIVE) and value in ("-1", "0", "'soon'") and where == "file":
            assert said["found"] == value


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
    variables = {
        "kafka": CANARY, "pipeline": "[", "zookeeper": '{"password":', "storage__catalogs": "'",
        "logs": "3", "spark": "[]", "retries__limit": "soon", "pipline__name": CANARY,
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(f"HEADRACE_{name.upper()}", value)
    with pytest.raises(BadConfig) as caught:
        load(None)
    errors = {error.place.rpartition("_")[2].lower(): error for error in caught.value.others}
    assert (caught.value.place, caught.value.key) == ("environment", "HEADRACE_PIPLINE__NAME")
    assert CANARY not in f"{caught.value} {caught.value.others} {caught.value.__cause__!r}"
    found = {errors[name].place: errors[name].key for name in ("kafka", "limit")}
    assert found == {
        "environment: HEADRACE_KAFKA": "kafka",
        "environment: HEADRACE_RETRIES__LIMIT": "retries.limit",
    }
    assert errors.keys() == {"kafka", "pipeline", "zookeeper", "catalogs", "logs", "spark", "limit"}
    for section in ("kafka", "pipeline", "zookeeper", "catalogs"):
        found = errors[section].found, errors[section].allowed
        assert found == ("text that is not JSON", "a table")
    assert caught.value.__context__ is None, "its text may show a secret value"
