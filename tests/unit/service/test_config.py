"""The configuration: what it reads from where, and what it says when something is wrong."""

from pathlib import Path

import pytest

from partition.interfaces import AtOffset, AtTimestamp
from service.config.settings import Config, load
from service.errors import EXIT_CONFIG, BadConfig
from transactions.transaction import TransactionPolicy

CANARY = "canary-4f1e9b"
GOOD = """
[kafka]
"bootstrap.servers" = "one:9092"
[zookeeper]
hosts = "one:2181"
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "service.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def fault(path: Path | None, overrides=None) -> BadConfig:
    with pytest.raises(BadConfig) as caught:
        load(path, overrides)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_CONFIG
    return caught.value


def test_a_file_with_the_two_addresses_is_enough(write):
    config = load(write(GOOD))
    assert config.kafka == {"bootstrap.servers": "one:9092"}
    assert config.zookeeper.hosts == "one:2181"
    assert config.http.port is None
    assert config.retries.policy().limit == 5
    assert config.assignment().limits.max_pending == config.pipeline.max_pending


def test_dotted_and_quoted_property_names_are_the_same(write):
    config = load(write('[kafka]\nbootstrap.servers = "one:9092"\n[zookeeper]\nhosts = "one"\n'))
    assert config.kafka == {"bootstrap.servers": "one:9092"}


def test_variables_stand_above_the_file_and_overrides_above_both(write, monkeypatch):
    monkeypatch.setenv("HEADRACE_PIPELINE__DRAIN_SECONDS", "7")
    monkeypatch.setenv("HEADRACE_KAFKA__BOOTSTRAP_SERVERS", "two:9092")
    monkeypatch.setenv("HEADRACE_KAFKA__CLIENT_ID", "me")
    path = write(
        "[pipeline]\ndrain_seconds = 3\nmax_pending = 9\n[retries]\nlimit = 2\n"
        '[kafka]\nbootstrap.servers = "one:9092"\n"fetch.min.bytes" = 5\n'
        '[zookeeper]\nhosts = "one"\nroot = "/mine"\n'
    )
    config = load(path, {"kafka": {"bootstrap.servers": "three:9092"}, "zookeeper": {"hosts": "3"}})
    assert config.pipeline.drain_seconds == 7
    assert config.pipeline.max_pending == 9
    assert config.kafka == {
        "bootstrap.servers": "three:9092",
        "client.id": "me",
        "fetch.min.bytes": 5,
    }
    assert config.zookeeper.hosts == "3"
    assert config.zookeeper.root == "/mine"
    assert config.retries.limit == 2


@pytest.mark.parametrize(
    ("text", "start_from"),
    [
        ("'latest'", "latest"),
        ("{ timestamp_ms = 1700000000000 }", AtTimestamp(1_700_000_000_000)),
        ("{ offset = 0 }", AtOffset(0)),
    ],
)
def test_where_to_start_from_is_a_word_a_time_stamp_or_an_offset(write, text, start_from):
    config = load(write(f"[pipeline]\nstart_from = {text}\n{GOOD}"))
    assert config.assignment().start.start_from == start_from


@pytest.mark.parametrize("text", ["'middle'", "{ offset = -1 }", "{ ofset = 1 }", "7"])
def test_a_wrong_place_to_start_from_is_told_with_what_is_allowed(write, text):
    told = str(fault(write(f"[pipeline]\nstart_from = {text}\n{GOOD}")))
    assert "pipeline.start_from" in told
    assert "earliest" in told or "offset" in told


def test_overrides_alone_are_enough():
    config = load(None, {"kafka": {"bootstrap.servers": "a:1"}, "zookeeper": {"hosts": "b:2"}})
    assert config.kafka["bootstrap.servers"] == "a:1"


@pytest.mark.parametrize("password", ["1.10", "1e5", "0123", "null", "true", "{x", "[1]", "a=b,c"])
def test_a_variable_gives_a_property_its_text_unchanged(password, write, monkeypatch):
    monkeypatch.setenv("HEADRACE_KAFKA__SASL_PASSWORD", password)
    assert load(write(GOOD)).kafka["sasl.password"] == password


def test_spark_properties_from_variables_have_dots(write, monkeypatch):
    monkeypatch.setenv("HEADRACE_SPARK__CONF__SPARK_MASTER", "local[3]")
    path = write(
        GOOD + '[spark.conf]\nspark.sql.catalog.my_cat = "x"\n"spark.ui.enabled" = false\n'
    )
    assert load(path).spark.conf == {
        "spark.sql.catalog.my_cat": "x",
        "spark.ui.enabled": False,
        "spark.master": "local[3]",
    }


@pytest.mark.parametrize(
    ("text", "key", "found", "allowed"),
    [
        (GOOD + "[pipelin]\nname = 'x'\n", "pipelin", "an unknown key", "pipeline, retries"),
        (GOOD + "[pipeline]\ndrain = 1\n", "pipeline.drain", "an unknown key", "drain_seconds"),
        (GOOD + "[pipeline]\ndrain_seconds = -1\n", "pipeline.drain_seconds", "-1", "greater"),
        (GOOD + "[http]\nport = 70000\n", "http.port", "70000", "65535"),
        (GOOD + "[logs]\nlevel = 'loud'\n", "logs.level", "'loud'", "'debug', 'info'"),
        (GOOD + "pipeline = 3\n", "zookeeper.pipeline", "an unknown key", "hosts, root"),
        ("pipeline = 3\n" + GOOD, "pipeline", "3", "a table"),
        (GOOD + "[kafka.x]\ny = [1]\n", "kafka.x.y", "a list", "a string, a number"),
        ("[kafka]\n'x.y' = 1\n[zookeeper]\nhosts='a'\n", "kafka", "keys x.y", "bootstrap.servers"),
        ("[zookeeper]\nhosts='a'\n", "kafka", "nothing", "bootstrap.servers"),
        ("[kafka]\nbootstrap.servers='a'\n", "zookeeper", "nothing", "a table with hosts"),
        (
            "[kafka]\nbootstrap.servers='a'\n[zookeeper]\n",
            "zookeeper.hosts",
            "nothing",
            "host:port",
        ),
        ("[kafka\n", "(file)", "line 1", "TOML"),
        (GOOD + "[retries]\nlimit = 0x1" + "0" * 16, "retries.limit", "65 bits", "of 64 bits"),
        (GOOD + "[kafka.x]\ny = [0x1" + "0" * 16 + "]", "kafka.x.y", "65 bits", "of 64 bits"),
        (GOOD + "[retries]\nlimit = " + "9" * 5_000, "(file)", "4300 digits", "numbers"),
    ],
)
def test_a_fault_names_the_key_what_was_found_and_what_is_allowed(text, key, found, allowed, write):
    path = write(text)
    error = fault(path)
    assert error.key == key
    assert found in error.found
    assert allowed in error.allowed
    assert error.place == str(path)
    assert str(error) == f"{path}: {key}: found {error.found}; allowed: {error.allowed}"


@pytest.mark.parametrize("name", ["..", ".", "a/..", "/a", "a/", "a//b", "a\\nb", "a\\u0000"])
def test_a_name_of_a_pipeline_that_leads_elsewhere_is_a_fault(name, write):
    error = fault(write(GOOD + f'[pipeline]\nname = "{name}"\n'))
    assert error.key == "pipeline.name"
    assert "'.' or '..'" in error.allowed


@pytest.mark.parametrize("name", ["", "orders", "a/b", "...", ".a", "größe 2"])
def test_other_names_of_a_pipeline_are_allowed(name, write):
    assert load(write(GOOD + f'[pipeline]\nname = "{name}"\n')).pipeline.name == name


def test_a_missing_file_and_one_that_is_no_text_are_told(tmp_path):
    assert fault(tmp_path / "none.toml").found == "no such file"
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in fault(path).found


def test_a_variable_is_blamed_by_its_name(write, monkeypatch):
    monkeypatch.setenv("HEADRACE_PIPELINE__DRAIN_SECONDS", "soon")
    assert fault(write(GOOD)).place == "environment: HEADRACE_PIPELINE__DRAIN_SECONDS"


def test_a_variable_of_no_section_is_a_fault(write, monkeypatch):
    monkeypatch.setenv("HEADRACE_PIPLINE__NAME", CANARY)
    error = fault(write(GOOD))
    assert error.key == "HEADRACE_PIPLINE__NAME"
    assert CANARY not in str(error)


def test_variables_that_are_read_elsewhere_are_no_fault(write, monkeypatch):
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert isinstance(load(write(GOOD)), Config)


def test_variable_for_a_table_must_be_json(write, monkeypatch):
    monkeypatch.setenv("HEADRACE_KAFKA", CANARY)
    error = fault(write(GOOD))
    assert error.place == "environment"
    assert CANARY not in str(error)


@pytest.mark.parametrize(
    "kafka",
    [
        f"'sasl.password' = '{CANARY}'",
        f"'bootstrap.servers' = 'a'\n'sasl.password' = ['{CANARY}']",
        f"'bootstrap.servers' = 'a'\n'ssl.key.password' = 1979-05-27 # {CANARY}",
    ],
)
def test_no_fault_shows_a_secret(kafka, write):
    error = fault(write(f"[kafka]\n{kafka}\n[zookeeper]\nhosts = 'a'\n"))
    assert CANARY not in str(error)
    assert CANARY not in repr(error.__cause__)
    assert "1979" not in str(error)


def test_the_secrets_are_known_by_the_names_of_their_keys(write):
    config = load(
        write(
            GOOD.replace("[zookeeper]", f"'sasl.password' = '{CANARY}'\n[zookeeper]")
            + "[spark.conf]\n'spark.hadoop.fs.s3a.secret.key' = 'hush-hush'\n'spark.master' = 'x'\n"
        )
    )
    assert config.secrets() == [CANARY, "hush-hush"]


@pytest.mark.parametrize("hosts", ["one", "a-b.c_d:1,[::1]:2181", "10.0.0.1:2181,b/x/y.z"])
def test_zookeepers_hosts_may_end_in_a_path_to_live_under(hosts, write):
    assert load(write(GOOD.replace("one:2181", hosts))).zookeeper.hosts == hosts


@pytest.mark.parametrize(
    "hosts",
    [
        *("", ",", "a:", "a:0", "a:65536", "a:b", "a,", "a, b", "zk://a:1"),
        *("a/", "a//b", "a/../b", "a:1/x,b:1/x", "::1", "/x"),
    ],
)
def test_other_forms_of_zookeepers_hosts_are_faults(hosts, write):
    error = fault(write(GOOD.replace("one:2181", hosts)))
    assert error.key == "zookeeper.hosts"
    assert "host:port,host:port, and once, at the end" in error.allowed


def test_credentials_in_zookeepers_hosts_are_refused_and_hidden(write):
    error = fault(write(GOOD.replace("one:2181", f"orders:{CANARY}@one:2181")))
    assert error.found == "'***@one:2181'"


SIGNED_IN = GOOD + "username = 'orders'\n" + f"password = '{CANARY}'\n"


@pytest.mark.parametrize("auth", ["digest", "sasl"])
def test_who_signs_in_to_zookeeper_keeps_the_nodes_to_himself(auth, write):
    config = load(write(SIGNED_IN + f"auth = '{auth}'\n"))
    security = config.zookeeper.security()
    assert (security.auth, security.username, security.password) == (auth, "orders", CANARY)
    assert security.acl == "creator"
    assert load(write(SIGNED_IN + f"auth='{auth}'\nacl='open'")).zookeeper.security().acl == "open"
    assert load(write(GOOD)).zookeeper.security().acl == "open"


def test_zookeeper_password_is_shown_nowhere(write, monkeypatch):
    monkeypatch.setenv("HEADRACE_ZOOKEEPER__PASSWORD", CANARY)
    config = load(write(GOOD + "auth = 'digest'\nusername = 'orders'\n"))
    assert config.secrets() == [CANARY]
    assert config.zookeeper.security().password == CANARY
    for text in (repr(config), str(config.zookeeper), config.model_dump_json(), repr(vars(config))):
        assert CANARY not in text


@pytest.mark.parametrize(
    ("keys", "key", "found", "allowed"),
    [
        ("auth = 'kerberos'", "auth", "'kerberos'", "'none', 'digest' or 'sasl'"),
        ("auth = 'digest'", "username", "nothing", "not empty"),
        ("auth = 'sasl'\nusername = ''", "username", "''", "not empty"),
        ("auth = 'digest'\nusername = 'a:b'", "username", "'a:b'", "without ':'"),
        ("auth = 'digest'\nusername = 'a'", "password", "nothing", "not empty"),
        ("auth = 'sasl'\nusername = 'a'\npassword = ''", "password", "a hidden", "not empty"),
        (f"auth = 'sasl'\nusername = 'a'\npassword = ['{CANARY}']", "password", "a hid", "string"),
        ("username = 'orders'", "username", "'orders'", 'nothing while auth = "none"'),
        (f"password = '{CANARY}'", "password", "a hidden", 'nothing while auth = "none"'),
        ("acl = 'creator'", "acl", "'creator'", 'only with auth = "digest" or "sasl"'),
        ("acl = 'all'", "acl", "'all'", "'open' or 'creator'"),
        ("tls_ca = 'ca.pem'", "tls_ca", "ca.pem", "nothing while tls = false"),
        ("tls_cert = 'c.pem'", "tls_cert", "c.pem", "nothing while tls = false"),
        ("tls_key = 'k.pem'", "tls_key", "k.pem", "nothing while tls = false"),
        ("tls = true\ntls_ca = 'none.pem'", "tls_ca", "none.pem", "PEM file with the certificates"),
        ("tls = true\ntls_ca = '.'", "tls_ca", "'.'", "PEM file with the certificates"),
        ("tls = true\ntls_cert = 'none.pem'", "tls_cert", "none.pem", "no such file"),
        ("tls = true\ntls_key = 'none.pem'", "tls_key", "none.pem", "while tls_cert is absent"),
        (f"tls = true\ntls_cert = '{__file__}'", "tls_key", "nothing", "private key of tls_cert"),
        (f"tls = true\ntls_ca = '{__file__}'", "tls_ca", "test_config.py", "no certificate"),
        ("keytab = 'x'", "keytab", "an unknown key", "auth, username, password"),
    ],
)
def test_a_fault_of_zookeepers_credentials_stands_at_its_key(keys, key, found, allowed, write):
    error = fault(write(GOOD + keys + "\n"))
    assert error.key == f"zookeeper.{key}"
    assert found in error.found
    assert allowed in error.allowed
    assert CANARY not in str(error)
    assert CANARY not in repr(error.__cause__)


def test_the_configuration_is_frozen(write):
    config = load(write(GOOD))
    with pytest.raises(ValueError, match="frozen"):
        config.pipeline.drain_seconds = 1


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_the_window_holds_all_transactions_that_are_active(write, kind):
    text = "[pipeline]\nmax_pending = 1000\n[transactions]\nmax_active = 4\nplan_seconds = 0.5\n"
    policy = load(write(GOOD + text)).transaction_policy(kind)
    assert policy == TransactionPolicy(kind, 4, 250, 16_000, 0.5)


def test_small_in_flight_limit_still_takes_one_record(write):
    config = load(write(GOOD + "[pipeline]\nmax_pending = 2\n"))
    assert config.transaction_policy("transactional").records == 1
