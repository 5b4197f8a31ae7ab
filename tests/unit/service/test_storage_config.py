import pytest

from headrace.sinks import DiscardSink
from service.config.settings import load
from service.errors import BadConfig
from service.wiring import wire
from sinks.storage import Storage
from tests.support.commands import topology_of

NEEDED = {"kafka": {"bootstrap.servers": "b:9092"}, "zookeeper": {"hosts": "z:2181"}}
CANARY = "canary-5ab2"


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
