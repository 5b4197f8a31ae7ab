import os

import pytest

from headrace.sinks import DiscardSink
from partition.interfaces import AtOffset, AtTimestamp
from service.config.settings import load
from service.errors import EXIT_CONFIG, BadConfig
from service.wiring import wire
from sinks.storage import Storage
from tests.support.commands import topology_of
from transactions.transaction import TransactionPolicy

CANARY = "canary-4f1e9b"
GOOD = """
[kafka]
"bootstrap.servers" = "one:9092"
[zookeeper]
hosts = "one:2181"
"""
SIGNED_IN = f"{GOOD}username = 'orders'\npassword = '{CANARY}'\n"
OF_FILE = "HEADRACE_ZOOKEEPER__PASSWORD__FILE"


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "service.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def loaded(write):
    return lambda text: load(write(text))


def fault(path):
    with pytest.raises(BadConfig) as caught:
        load(path)
    said = f"{caught.value} {caught.value.__cause__!r}"
    assert "\n" not in said
    assert CANARY not in said
    assert caught.value.exit_code == EXIT_CONFIG
    return caught.value


def test_a_file_with_the_two_addresses_is_enough(loaded):
    config = loaded(GOOD)
    assert config.kafka == {"bootstrap.servers": "one:9092"}
    assert config.zookeeper.hosts == "one:2181"
    assert config.http.port is None
    assert config.assignment().retries.limit == 5
    assert config.assignment().limits.max_pending == config.pipeline.max_pending
    with pytest.raises(ValueError, match="frozen"):
        config.pipeline.drain_seconds = 1


def test_variables_stand_above_the_file_and_overrides_above_both(write, monkeypatch):
    monkeypatch.setenv("HEADRACE_PIPELINE__DRAIN_SECONDS", "7")
    monkeypatch.setenv("HEADRACE_KAFKA__BOOTSTRAP_SERVERS", "two:9092")
    monkeypatch.setenv("HEADRACE_KAFKA__CLIENT_ID", "me")
    monkeypatch.setenv("HEADRACE_KAFKA__SASL_OAUTHBEARER_ASSERTION_FILE", "/k.pem")
    monkeypatch.setenv("HEADRACE_SPARK__CONF__SPARK_MASTER", "local[3]")
    monkeypatch.setenv("HEADRACE_DEBUG", "1")  # which is read elsewhere
    path = write(
        "[pipeline]\ndrain_seconds = 3\nmax_pending = 9\n[retries]\nlimit = 2\n"
        '[kafka]\nbootstrap.servers = "one:9092"\n"fetch.min.bytes" = 5\n'
        '[zookeeper]\nhosts = "one"\nroot = "/mine"\n'
        '[spark.conf]\nspark.sql.catalog.my_cat = "x"\n"spark.ui.enabled" = false\n'
    )
    config = load(path, {"kafka": {"bootstrap.servers": "three:9092"}, "zookeeper": {"hosts": "3"}})
    assert (config.pipeline.drain_seconds, config.pipeline.max_pending) == (7, 9)
    assert config.kafka == {
        "bootstrap.servers": "three:9092", "client.id": "me", "fetch.min.bytes": 5,
        "sasl.oauthbearer.assertion.file": "/k.pem",
    }  # fmt: skip
    assert (config.zookeeper.hosts, config.zookeeper.root) == ("3", "/mine")
    assert config.retries.limit == 2
    assert config.spark.conf == {
        "spark.sql.catalog.my_cat": "x", "spark.ui.enabled": False, "spark.master": "local[3]",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "start_from"),
    [
        ("'latest'", "latest"),
        ("{ timestamp_ms = 1700000000000 }", AtTimestamp(1_700_000_000_000)),
        ("{ offset = 0 }", AtOffset(0)),
    ],
)
def test_where_to_start_from_is_a_word_a_time_stamp_or_an_offset(loaded, text, start_from):
    config = loaded(f"[pipeline]\nstart_from = {text}\n{GOOD}")
    assert config.assignment().start.start_from == start_from


@pytest.mark.parametrize("password", ["1.10", "1e5", "0123", "null", "true", "{x", "[1]", "a=b,c"])
def test_a_variable_gives_a_property_its_text_unchanged(password, loaded, monkeypatch):
    monkeypatch.setenv("HEADRACE_KAFKA__SASL_PASSWORD", password)
    assert loaded(GOOD).kafka["sasl.password"] == password


@pytest.mark.parametrize("name", ["", "orders", "a/b", "...", ".a", "größe 2"])
def test_names_of_a_pipeline_that_stay_in_its_node_are_allowed(name, loaded):
    assert loaded(f'{GOOD}[pipeline]\nname = "{name}"\n').pipeline.name == name


@pytest.mark.parametrize("hosts", ["one", "a-b.c_d:1,[::1]:2181", "10.0.0.1:2181,b/x/y.z"])
def test_zookeepers_hosts_may_end_in_a_path_to_live_under(hosts, loaded):
    assert loaded(GOOD.replace("one:2181", hosts)).zookeeper.hosts == hosts


BIG = "0x1" + "0" * 16
START = "'earliest', 'latest', { timestamp_ms = N } or { offset = N }"
HOSTS = "host:port,host:port, and once, at the end"


@pytest.mark.parametrize(
    ("text", "key", "found", "allowed"),
    [
        (GOOD + "[pipelin]\nname = 'x'\n", "pipelin", "an unknown key", "pipeline, retries"),
        (GOOD + "[pipeline]\ndrain = 1\n", "pipeline.drain", "an unknown key", "drain_seconds"),
        (GOOD + "[http]\nport = 70000\n", "http.port", "70000", "65535"),
        (GOOD + "[logs]\nlevel = 'loud'\n", "logs.level", "'loud'", "'debug', 'info'"),
        (GOOD + "pipeline = 3\n", "zookeeper.pipeline", "an unknown key", "hosts, root"),
        ("pipeline = 3\n" + GOOD, "pipeline", "3", "a table"),
        (GOOD + "[kafka.x]\ny = [1]\n", "kafka.x.y", "a list", "a string, a number"),
        ("[kafka]\n[zookeeper]\nhosts='a'", "kafka.bootstrap.servers", "nothing", "host:port"),
        ("[zookeeper]\nhosts='a'\n", "kafka", "nothing", "bootstrap.servers"),
        ("[kafka]\nbootstrap.servers='a'\n", "zookeeper", "nothing", "a table with hosts"),
        ("[zookeeper]\n" + GOOD.partition("[z")[0], "zookeeper.hosts", "nothing", "host:port"),
        ("[kafka\n", "(file)", "line 1", "TOML"),
        (GOOD + f"[retries]\nlimit = {BIG}", "retries.limit", "65 bits", "of 64 bits"),
        (GOOD + f"[kafka.x]\ny = [{BIG}]", "kafka.x.y", "65 bits", "of 64 bits"),
        (GOOD + "[retries]\nlimit = " + "9" * 5_000, "(file)", "4300 digits", "64 bits"),
        *((f"[pipeline]\nstart_from = {start}\n{GOOD}", "pipeline.start_from", "", START)
          for start in ("'middle'", "{ offset = -1 }", "{ ofset = 1 }", "7")),
        *((GOOD.replace("one:2181", hosts), "zookeeper.hosts", "", HOSTS) for hosts in (
            "", ",", "a:", "a:0", "a:65536", "a:b", "a,", "a, b", "zk://a:1", "a/", "a//b",
            "a/../b", "a:1/x,b:1/x", "::1", "/x",
        )),
        (GOOD.replace("one:2181", f"me:{CANARY}@one:1"), "zookeeper.hosts", "'***@one:1'", HOSTS),
        (f"{GOOD}[kafka.sasl]\npasword = '{CANARY}'", "kafka.sasl.pasword", "an unknown key", ""),
        (f"{GOOD}[kafka.sasl]\npassword = ['{CANARY}']", "kafka.sasl.password", "a hidden", ""),
        (f"{GOOD}[kafka.ssl.key]\npassword = 1979-05-27", "kafka.ssl.key.password", "a hidden", ""),
    ],
)  # fmt: skip
def test_a_fault_names_the_key_what_was_found_and_what_is_allowed(text, key, found, allowed, write):
    path = write(text)
    error = fault(path)
    assert (error.key, error.place) == (key, str(path))
    assert found in error.found
    assert allowed in error.allowed
    where = f"{path}:{error.line}" if error.line else f"{path}"
    assert str(error) == f"{where}: {key}: found {error.found}, expected {error.allowed}"


def test_a_missing_file_and_one_that_is_no_text_are_told(tmp_path):
    assert fault(tmp_path / "none.toml").found == "no such file"
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    assert fault(path).found == "bytes that are no UTF-8"
    path = tmp_path / "pipe.toml"
    os.mkfifo(path)  # read twice, it would be empty
    assert fault(path).found == "no regular file"


def test_too_deep_a_file_is_refused_and_so_is_a_bare_carriage_return(write):
    assert fault(write(f"[{'a.' * 3000}a]")).found == "values nested too deep"
    path = write("")
    path.write_bytes(b"# c\r[logs]\n")
    assert "Found invalid character" in fault(path).found


@pytest.mark.parametrize("text", ["s3cret", "s3cret\n", "s3cret\r\n", " a=b {x\n\n"], ids=repr)
def test_a_secret_is_read_from_the_file_that_a_variable_names(text, loaded, tmp_path, monkeypatch):
    (tmp_path / "password").write_bytes(text.encode())
    for name in (OF_FILE, "HEADRACE_KAFKA__SASL_PASSWORD__FILE"):
        monkeypatch.setenv(name, str(tmp_path / "password"))
    config = loaded(GOOD + "auth = 'digest'\nusername = 'me'\n")
    secret = text.removesuffix("\n").removesuffix("\r")
    assert config.zookeeper.security().password == config.kafka["sasl.password"] == secret
    assert config.secrets() == [secret, secret]


@pytest.mark.parametrize(
    ("content", "found"),
    [(None, "No such file"), (b"\xff\xfe", "no UTF-8"), (b"x" * 65_537, "larger")],
    ids=["missing", "bytes", "large"],
)
def test_a_file_that_cannot_be_read_is_named(content, found, write, tmp_path, monkeypatch):
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(OF_FILE, str(path))
    error = fault(write(GOOD))
    assert (error.key, found in error.found) == (OF_FILE, True)
    assert "65,536" in error.allowed
    monkeypatch.setenv(OF_FILE, "/" + "x" * 5_000)
    assert "name too long" in fault(write(GOOD)).found
    monkeypatch.setenv(OF_FILE.removesuffix("__FILE"), CANARY)
    assert fault(write(GOOD)).allowed == "one of the two"


@pytest.mark.parametrize("auth", ["digest", "sasl"])
def test_who_signs_in_to_zookeeper_keeps_the_nodes_to_himself(auth, loaded):
    security = loaded(f"{SIGNED_IN}auth = '{auth}'\n").zookeeper.security()
    assert (security.auth, security.username, security.password) == (auth, "orders", CANARY)
    assert security.acl == "creator"
    assert loaded(f"{SIGNED_IN}auth = '{auth}'\nacl = 'open'").zookeeper.security().acl == "open"
    assert loaded(GOOD).zookeeper.security().acl == "open"


def test_secrets_are_known_by_their_keys_and_shown_nowhere(loaded):
    config = loaded(
        GOOD.replace("[zookeeper]", f"'sasl.password' = '{CANARY}-1'\n[zookeeper]")
        + f"auth = 'digest'\nusername = 'orders'\npassword = '{CANARY}-2'\n[spark.conf]\n"
        + f"'spark.hadoop.fs.s3a.secret.key' = '{CANARY}-3'\n'spark.master' = 'yarn'\n"
    )
    assert config.secrets() == [f"{CANARY}-{number}" for number in (1, 2, 3)]
    zookeeper = config.zookeeper
    for text in (repr(config), str(zookeeper), zookeeper.model_dump_json(), repr(vars(zookeeper))):
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


@pytest.mark.parametrize(
    ("kind", "max_pending", "records"),
    [("transactional", 1000, 250), ("opaque", 1000, 250), ("transactional", 2, 1)],
)
def test_the_window_holds_all_transactions_that_are_active(loaded, kind, max_pending, records):
    text = f"[pipeline]\nmax_pending = {max_pending}\n[transactions]\nmax_active = 4\n"
    policy = loaded(f"{GOOD}{text}plan_seconds = 0.5\n").transaction_policy(kind)
    assert policy == TransactionPolicy(kind, 4, records, 16_000, 0.5)


NEEDED = {"kafka": {"bootstrap.servers": "b:9092"}, "zookeeper": {"hosts": "z:2181"}}


def config(**storage):
    return load(None, {**NEEDED, "storage": storage})


@pytest.mark.parametrize("place", ["file:/data/lake", "s3a://b/lake", "lake", "../here/lake"])
def test_path_of_a_warehouse_is_made_absolute(place, tmp_path, monkeypatch):
    here = tmp_path.resolve() / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    found = config(warehouse=place).storage.storage().warehouse
    assert found == (place if ":" in place else str(here / "lake"))


def test_variables_and_files_give_what_the_section_may_hold(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text(f"{CANARY}\n")
    for name, value in {
        "WAREHOUSE": "s3://lake", "ENDPOINT": "http://store:9000/", "ACCESS_KEY_ID": "id-77",
        "SECRET_ACCESS_KEY__FILE": str(secret), "OPTIONS__DELTA__TIMEOUT": "9s",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"HEADRACE_STORAGE__{name}", value)
    found = load(None, NEEDED).storage.storage()
    assert found == Storage(
        "s3://lake",
        endpoint="http://store:9000",
        secrets={"access_key_id": "id-77", "secret_access_key": CANARY},
        secret_files={"secret_access_key": str(secret)},
        options={"arrow": {}, "delta": {"timeout": "9s"}, "iceberg": {}},
    )


@pytest.mark.parametrize(
    ("storage", "key"),
    [
        ({"endpoint": "store:9000"}, "storage.endpoint"),
        ({"endpoint": "http://a/bucket"}, "storage.endpoint"),
        ({"endpoint": "http://user:pass@a"}, "storage.endpoint"),
        ({"ca_file": "/not/there.pem"}, "storage.ca_file"),
        ({"access_key_id": "id"}, "storage.secret_access_key"),
        ({"secret_access_key": CANARY}, "storage.secret_access_key"),
        ({"options": {"hadoop": {}}}, "storage.options.hadoop"),
    ],
)
def test_a_fault_is_named_by_its_key(storage, key):
    with pytest.raises(BadConfig) as refused:
        config(**storage)
    assert f"{key}: found " in str(refused.value)
    assert CANARY not in str(refused.value)


def test_secrets_of_the_store_are_shown_nowhere(monkeypatch):
    """Those that libraries find in the environment, too."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{CANARY}-env")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/token")
    made = config(
        warehouse="s3://lake", access_key_id=f"{CANARY}-id", secret_access_key=f"{CANARY}-key",
        session_token=f"{CANARY}-token", account_key=f"{CANARY}-account", sas_token=f"{CANARY}-sas",
        options={"delta": {"aws_sse_customer_key": "x", "azure_client_secret": f"{CANARY}-opt"}},
    )  # fmt: skip
    hidden = {secret for secret in made.secrets() if CANARY in secret}
    endings = {"env", "id", "key", "token", "account", "sas", "opt"}
    assert hidden == {f"{CANARY}-{each}" for each in endings}
    assert "/run/token" not in made.secrets()
    parts = wire(topology_of([DiscardSink("orders")]), made)
    assert CANARY not in f"{made!r} {made} {parts!r} {parts.context('sink')!r}"


def test_catalogues_pass_through_without_showing_secrets(monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(f"{CANARY}-file\n")
    start = "HEADRACE_STORAGE__CATALOGS__LAKE"
    monkeypatch.setenv(f"{start}__CREDENTIAL__FILE", str(secret))
    monkeypatch.setenv(f"{start}__S3__SECRET_ACCESS_KEY", f"{CANARY}-s3")
    monkeypatch.setenv(f"{start}__REST__SIGV4_ENABLED", "true")
    url = f"postgresql+psycopg://me:{CANARY}-db@host/lake"
    made = config(catalogs={"lake": {"type": "rest"}, "db": {"type": "sql", "uri": url}})
    assert made.storage.storage().catalogs == {
        "lake": {
            "type": "rest", "credential": f"{CANARY}-file", "rest.sigv4-enabled": "true",
            "s3.secret-access-key": f"{CANARY}-s3",
        },
        "db": {"type": "sql", "uri": url},
    }  # fmt: skip
    assert {f"{CANARY}-{each}" for each in ("file", "s3", "db")} <= set(made.secrets())
    assert CANARY not in f"{made!r} {made} {made.storage.storage()!r}"
