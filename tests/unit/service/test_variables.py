"""HEADRACE_… variables that name a file: secrets need not stand in the environment."""

import pytest

from service.config.settings import load
from service.errors import BadConfig

KAFKA = {"kafka": {"bootstrap.servers": "a:1"}}
HOSTS = {"zookeeper": {"hosts": "b:2", "auth": "sasl", "username": "me"}}
VARIABLE = "HEADRACE_ZOOKEEPER__PASSWORD__FILE"


@pytest.mark.parametrize("text", ["s3cret", "s3cret\n", "s3cret\r\n"], ids=repr)
def test_a_secret_is_read_from_the_file_that_a_variable_names(text, tmp_path, monkeypatch):
    (tmp_path / "password").write_bytes(text.encode())
    monkeypatch.setenv(VARIABLE, str(tmp_path / "password"))
    config = load(None, KAFKA | HOSTS)
    assert config.zookeeper.password is not None
    assert config.zookeeper.password.get_secret_value() == "s3cret"
    assert "s3cret" in config.secrets()


def test_a_property_is_read_from_a_file_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "password").write_text(" a=b {x\n\n")
    monkeypatch.setenv("HEADRACE_KAFKA__SASL_PASSWORD__FILE", str(tmp_path / "password"))
    assert load(None, KAFKA | HOSTS | {"zookeeper": {"hosts": "b:2"}}).kafka["sasl.password"] == (
        " a=b {x\n"
    )


def test_a_property_that_ends_in_file_is_still_itself(monkeypatch):
    monkeypatch.setenv("HEADRACE_KAFKA__SASL_OAUTHBEARER_ASSERTION_PRIVATE_KEY_FILE", "/k.pem")
    properties = load(None, KAFKA | {"zookeeper": {"hosts": "b:2"}}).kafka
    assert properties["sasl.oauthbearer.assertion.private.key.file"] == "/k.pem"


def test_a_value_and_a_file_for_one_key_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(VARIABLE.removesuffix("__FILE"), "canary")
    with pytest.raises(BadConfig, match="one of the two") as refused:
        load(None, KAFKA | HOSTS)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [(None, "No such file"), (b"\xff\xfe", "no UTF-8"), (b"x" * 65_537, "larger")],
    ids=["missing", "bytes", "large"],
)
def test_a_file_that_cannot_be_read_is_named(content, found, tmp_path, monkeypatch):
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(BadConfig, match=found) as refused:
        load(None, KAFKA | HOSTS)
    assert VARIABLE in str(refused.value)
    assert "65,536" in str(refused.value)


def test_a_name_that_no_file_can_have_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/" + "x" * 5_000)
    with pytest.raises(BadConfig, match="name too long"):
        load(None, KAFKA | HOSTS)
