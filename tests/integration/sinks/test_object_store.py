from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from headrace.sinks import DeltaSink
from service.devservers.process import HOST
from sinks.probe import probe
from sinks.storage import Storage
from tests.support.near_a_store import identity_agent, unconditional
from tests.support.seaweed import KEY_ID, PUBLIC, SECRET, EmbeddedSeaweed
from tests.support.secured_servers import Authority
from topology.errors import SinkFailed
from topology.sink import SinkContext

pytestmark = pytest.mark.integration

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def storage(seaweed, request):
    return seaweed.storage(request.node.name.replace("[", "-").replace("]", ""))


def test_configured_key_goes_over_credentials_in_the_environment(storage, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    nothing_given = replace(storage, secrets={}, region="eu-west-1")  # a client of its own
    assert "refused" in probe(nothing_given)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "of-somebody-else")
    for name in ("", "_S3"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL{name}", "http://127.0.0.1:1")
    assert "refused" in probe(replace(storage, region="eu-west-3"))


def test_a_key_that_was_changed_in_its_file_is_used_from_then_on(storage, tmp_path):
    file = tmp_path / "secret"
    file.write_text("one-that-has-expired")
    storage = replace(storage, secret_files={"secret_access_key": str(file)})
    with pytest.raises(SinkFailed, match="cannot write"):
        probe(storage)
    file.write_text(SECRET)
    assert "refused" in probe(storage)


def test_credentials_are_those_of_the_pods_identity(storage, tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text("of-the-pod")
    with identity_agent("of-the-pod", KEY_ID, SECRET) as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        assert "refused" in probe(replace(storage, secrets={}, region="eu-west-2"))


def test_store_is_trusted_by_its_ca_file(tmp_path, monkeypatch):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):  # put back as they were afterwards
        monkeypatch.setenv(name, "")
    authority = Authority(tmp_path / "tls", server=f"IP:{HOST}")
    server = EmbeddedSeaweed(tmp_path, certificate=authority.pem("server"))
    server.open()
    try:
        trusting = replace(server.storage(), endpoint=server.https_url)
        trusting = replace(trusting, ca_file=str(authority.certificate))
        assert "refused" in probe(trusting)
        with pytest.raises(SinkFailed, match="SSL peer certificate"):
            probe(replace(trusting, ca_file=None))
    finally:
        server.close()


@pytest.mark.parametrize("store", ["local", "s3"])
def test_the_probe_leaves_nothing(store, storage, tmp_path):
    if store == "local":
        storage = Storage(str(tmp_path / "new"))
    assert probe(storage) == "write, read, conditional overwrite refused, delete"
    files, path = storage.filesystem(storage.warehouse)
    assert files.get_file_info(pafs.FileSelector(path, recursive=True)) == []


def test_key_without_write_access_is_reported(seaweed):
    with pytest.raises(SinkFailed, match=r"cannot write: .*ACCESS_DENIED") as refused:
        probe(seaweed.storage(writes=False))
    assert SECRET not in str(refused.value)


def test_a_bucket_that_is_not_there_is_named(storage):
    with pytest.raises(SinkFailed, match=r"nobucket/.*cannot write"):
        probe(replace(storage, warehouse="s3://nobucket"))


def test_store_without_conditional_writes_is_refused(seaweed):
    with unconditional(seaweed.address) as url:
        storage = replace(seaweed.storage(), warehouse=f"s3://{PUBLIC}/t", endpoint=url)
        with pytest.raises(SinkFailed, match="the store has no conditional writes"):
            probe(storage)
        sink = DeltaSink[Any]("orders", schema=ROWS.schema)
        with pytest.raises(SinkFailed, match="the store has no conditional writes"):
            sink.open(SinkContext("p", "orders", {}, storage, None, exactly_once=True))


def test_probe_deleted_twice_is_fine(tmp_path, monkeypatch):
    """A reply was lost, and the request was sent again."""

    class Repeating(pafs.LocalFileSystem):
        def delete_dir(self, path: str) -> None:
            super().delete_dir(path)
            raise FileNotFoundError(path)

    monkeypatch.setattr(Storage, "filesystem", lambda _storage, uri: (Repeating(), uri))
    assert probe(Storage(str(tmp_path))).endswith("delete")
